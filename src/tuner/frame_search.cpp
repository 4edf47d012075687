#include "frame_search.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "descent.hpp"
#include "fronts.hpp"
#include "grid.hpp"
#include "pipeline.hpp"

namespace brume::tuner {
namespace {

/// Cutoffs of a frame's dynamic programs in units of its bound, one after the other: the nearer the
/// cutoff, the fewer labels there are.
constexpr double cutoffs[] = {1.03, 1.1, 1.3, 2.0, 5.0, infinity};

constexpr double near = 1.12;  ///< a plan known that is nearer to the bound is the cutoff at once

constexpr int threshold_rounds = 3;

/// Plans that a frame of 1F1B offers; more would only differ in knobs that hardly matter. A frame
/// of another order, of which only the best plan is placed, offers that one.
constexpr std::size_t most_offers = 4;

constexpr double worth_steps = 1.03;  ///< steps gain so much, of the time of the fastest plan known

// Errors of memory: frames of the same one share fronts; with more a frame is given up.
constexpr double memory_error_step = 0.01, most_memory_error = 0.5;

constexpr std::size_t most_labels_grow = 8;  ///< times as many where a merged choice does not fit

// GLPK settles so many points in milliseconds.
constexpr std::size_t small_points = 400;
constexpr double glpk_s = 2.0;

std::size_t role_of(const Frame& frame, int after) {
  return (after + 1 == frame.num_stages ? 2u : 0u) + (after == 0 ? 1u : 0u);
}

/// Most layers of a stage whose points (one a number of layers) take at most this long.
int most_layers(const std::vector<Point>& points, double threshold_s) {
  for (auto point = points.rbegin(); point != points.rend(); ++point)
    if (point->stable_s <= threshold_s) return point->layers();
  return 0;
}

}  // namespace

FrameSearch::FrameSearch(const Question& question, std::shared_ptr<Fronts> fronts, Frame frame,
                         double bound_s)
    : question_(question),
      frame_(std::move(frame)),
      fronts_(std::move(fronts)),
      bound_s_(bound_s),
      most_labels_(question.most_labels) {
  if (bound_s == infinity) step_ = Step::done;
}

const std::vector<Point>& FrameSearch::unlimited(int layout, int after) const {
  return unlimited_[std::size_t(layout)][role_of(frame_, after)];
}

Pipeline FrameSearch::empty_pipeline() {
  Pipeline pipeline{.frame = frame_,
                    .messages = *messages_,
                    .num_layers = question_.model.num_layers,
                    .cluster = question_.cluster,
                    .deadline = question_.deadline,
                    .host_matters = host_matters_,
                    .cells = {}};
  pipeline.cells.resize(std::size_t(frame_.num_stages));
  return pipeline;
}

Pipeline FrameSearch::unlimited_pipeline() {
  Pipeline pipeline = empty_pipeline();
  pipeline.host_matters = false;
  for (int after = 0; after < frame_.num_stages; ++after)
    for (int layout = 0; layout < int(frame_.layouts.size()); ++layout) {
      question_.deadline.check();
      for (const Point& point : unlimited(layout, after))
        pipeline.cells[std::size_t(after)].push_back(
            {layout, point.layers(), std::span(&point, 1)});
    }
  return pipeline;
}

/// The meshes that stages of at most such stable times may take, memory or not.
Rooms FrameSearch::rooms(const Thresholds& thresholds_s) const {
  const auto of = [&](int after) {
    std::map<std::pair<int, int>, int> most;  // by group and devices
    for (int layout = 0; layout < int(frame_.layouts.size()); ++layout)
      if (const int layers =
              most_layers(unlimited(layout, after), thresholds_s[std::size_t(after)])) {
        const Layout& mesh = frame_.layouts[std::size_t(layout)];
        int& known = most[{mesh.group, mesh.devices()}];
        known = std::max(known, layers);
      }
    std::vector<Room> meshes;
    for (const auto& [mesh, layers] : most) meshes.push_back({mesh.first, mesh.second, layers});
    return meshes;
  };
  Rooms rooms;
  for (int after = 0; after < frame_.num_stages; ++after) {
    const auto i = std::size_t(after);
    // Stages in between are alike.
    const bool as_before =
        after > 1 && after + 1 < frame_.num_stages && thresholds_s[i] == thresholds_s[i - 1];
    rooms.push_back(as_before ? rooms.back() : of(after));
  }
  return rooms;
}

/// Stable times above which a stage has no place in an iteration below `cutoff_s`: it works on all
/// microbatches, and the stages before it, which hold what the later ones cannot, come on top.
FrameSearch::Thresholds FrameSearch::thresholds(double cutoff_s) const {
  cutoff_s += longest_less_s_;
  Thresholds thresholds_s(std::size_t(frame_.num_stages), cutoff_s / frame_.microbatches);
  if (cutoff_s == infinity) return thresholds_s;
  for (int round = 0; round < threshold_rounds; ++round) {
    const Rooms rooms = this->rooms(thresholds_s);
    int later_layers = 0;  // at most
    for (std::size_t after = 0; after < rooms.size(); ++after) {
      int most = 0;
      for (const Room& room : rooms[after]) most = std::max(most, room.layers);
      later_layers += most;
      const int earlier_layers = std::max(0, question_.model.num_layers - later_layers);
      thresholds_s[after] = (cutoff_s - frame_.fill_share() * fastest_layer_s_ * earlier_layers) /
                            frame_.microbatches;
    }
  }
  return thresholds_s;
}

Prices FrameSearch::prices(double threshold_s) const {
  std::vector<int> afters{0};
  if (frame_.num_stages > 1) afters.push_back(frame_.num_stages - 1);
  if (frame_.num_stages > 2) afters.push_back(1);  // and all others between the ends
  std::vector<Alike> stages;
  for (int after : afters) {
    const bool between = after > 0 && after + 1 < frame_.num_stages;
    Alike& alike = stages.emplace_back(Alike{between ? frame_.num_stages - 2 : 1, {}});
    std::map<std::tuple<int, int, int>, double> fastest_s;  // by group, devices, layers
    for (int layout = 0; layout < int(frame_.layouts.size()); ++layout) {
      const Layout& mesh = frame_.layouts[std::size_t(layout)];
      for (const Point& p : unlimited(layout, after))
        if (p.stable_s <= threshold_s) {
          const std::tuple key{mesh.group, mesh.devices(), p.layers()};
          const auto known = fastest_s.try_emplace(key, p.whole_s()).first;
          known->second = std::min(known->second, p.whole_s());
        }
    }
    for (const auto& [key, whole_s] : fastest_s) {
      const auto [group, devices, layers] = key;
      alike.options.push_back({group, devices, layers, whole_s});
    }
  }
  std::vector<int> devices;
  for (const hardware::NodeGroup& group : question_.cluster.groups)
    devices.push_back(group.devices());
  return best_prices(stages, question_.model.num_layers, devices, question_.deadline);
}

/// A bound from the fastest slowest stage that can hold all layers, and from round trips.
void FrameSearch::begin(Grid& grid) {
  const auto [least, most] = std::ranges::minmax(frame_.layouts, {}, &Layout::devices);
  const int devices = question_.cluster.devices();
  const bool fills = question_.cluster.num_groups() == 1;
  const std::int64_t stages = frame_.num_stages;
  if (stages * least.devices() > devices || (fills && stages * most.devices() < devices))
    return hold_nothing();
  unlimited_.assign(frame_.layouts.size(), std::vector<std::vector<Point>>(4));
  std::vector<double> ends;
  for (int layout = 0; layout < int(frame_.layouts.size()); ++layout)
    for (int after : {0, std::min(1, frame_.num_stages - 1), frame_.num_stages - 1}) {
      auto& points = unlimited_[std::size_t(layout)][role_of(frame_, after)];
      if (points.empty())
        std::ranges::copy_if(fronts_->unlimited(grid, {frame_, layout, after}),
                             std::back_inserter(points), [&](const Point& p) {
                               return p.layers() >= frame_.least_layers() &&
                                      p.layers() <= frame_.most_layers(question_.model.num_layers);
                             });
      for (const Point& p : points) {
        ends.push_back(p.stable_s);
        fastest_layer_s_ = std::min(fastest_layer_s_, p.whole_s() / p.layers());
        longest_less_s_ = std::max(longest_less_s_, p.less_s);
        shortest_layer_s_ = std::min(shortest_layer_s_, p.shortest_s() / p.layers());
      }
    }
  std::ranges::sort(ends);
  const auto fastest = std::ranges::partition_point(ends, [&](double threshold_s) {
    const Thresholds all(std::size_t(frame_.num_stages), threshold_s);
    return !enough(rooms(all), question_.model.num_layers, question_.cluster, question_.deadline);
  });
  if (fastest == ends.end()) return hold_nothing();  // devices do not add up
  const double bound_s = std::max(
      frame_.microbatches * *fastest - longest_less_s_,
      trips(frame_, frame_.num_stages - 1) * shortest_layer_s_ * question_.model.num_layers);
  bound_s_ = std::max(bound_s_, bound_s * (1.0 - bound_rounding));
  fastest_layer_s_ = std::max(fastest_layer_s_, 0.0);
  messages_.emplace(grid, frame_, question_.cluster);
  step_ = Step::unlimited;
}

void FrameSearch::hold_nothing() {
  bound_s_ = infinity;
  step_ = Step::done;
}

/// Most layers of the other stages; -1 where none of their meshes go with this one.
int FrameSearch::most_of_others(const Capacity& room, int layout, int after) const {
  const Layout& mesh = frame_.layouts[std::size_t(layout)];
  int others = -1;
  for (std::size_t use = 0; use < room.uses().size(); ++use) {
    const int last = room.last(after, use);
    if (last < 0 || room.uses().left(use, mesh.group) < mesh.devices()) continue;
    const int first = room.first(after + 1, room.uses().with(use, mesh.group, mesh.devices()));
    if (first >= 0) others = std::max(others, last + first);
  }
  return others;
}

/// What stages of at most such stable times may take, as far as layers and devices can add up.
std::vector<FrameSearch::Part> FrameSearch::parts(const Thresholds& thresholds_s) const {
  const Capacity room(rooms(thresholds_s), question_.cluster, question_.deadline);
  const int num_layers = question_.model.num_layers;
  std::vector<Part> parts;
  for (int after = 0; after < frame_.num_stages; ++after) {
    const double threshold_s = thresholds_s[std::size_t(after)];
    for (int layout = 0; layout < int(frame_.layouts.size()); ++layout) {
      question_.deadline.check();
      const int most_here = most_layers(unlimited(layout, after), threshold_s);
      if (most_here == 0) continue;
      const int others = most_of_others(room, layout, after);
      const int least_here = std::max(frame_.least_layers(), num_layers - others);
      if (others < 0 || least_here > most_here) continue;
      parts.push_back({layout, after, least_here, most_here, threshold_s});
    }
  }
  return parts;
}

Pipeline FrameSearch::limited_pipeline(const std::vector<Part>& parts) {
  Pipeline pipeline = empty_pipeline();
  for (const Part& part : parts)
    for (int layers = part.least_layers; layers <= part.most_layers; ++layers) {
      const auto& front = fronts_->front(seat(part), layers);
      if (!front.empty())
        pipeline.cells[std::size_t(part.after)].push_back({part.layout, layers, std::span(front)});
    }
  return pipeline;
}

const std::vector<FrameSearch::Part>& FrameSearch::plan(double known_s) {
  double cutoff_s = bound_s_ * cutoffs[ends_tried_];
  // In other orders the bound tells little of which layers stages should have.
  if (known_s <= bound_s_ * near || !frame_.is_1f1b()) cutoff_s = known_s;
  Prepared next{known_s, std::min(cutoff_s, known_s), {}, {}};
  next.thresholds_s = thresholds(next.cutoff_s);
  if (step_ == Step::limited) next.parts = parts(next.thresholds_s);
  return prepared_.emplace(std::move(next)).parts;
}

void FrameSearch::prepare(Grid& grid, const Part& part) {
  fronts_->prepare(grid, seat(part), part.least_layers, part.most_layers, part.threshold_s);
}

void FrameSearch::settle() {
  if (host_matters_) fronts_->count_host();
}

std::vector<Offer> FrameSearch::work(Grid& grid) {
  const auto [known_s, cutoff_s, thresholds_s, parts] = *std::exchange(prepared_, std::nullopt);
  const Pipeline pipeline =
      step_ == Step::unlimited ? unlimited_pipeline() : limited_pipeline(parts);
  const Choices choices =
      best_choices(pipeline, thresholds_s, cutoff_s,
                   prices((cutoff_s + longest_less_s_) / frame_.microbatches), most_labels_);
  ++programs_;
  if (choices.best.empty()) {
    bound_s_ = std::max(bound_s_, cutoff_s);
    if (cutoff_s < known_s) ++ends_tried_;
    if (cutoff_s == infinity) step_ = Step::done;
    return {};
  }
  bound_s_ = std::max(bound_s_, choices.bound_s * (1.0 - bound_rounding));
  ends_tried_ = 0;
  if (step_ == Step::unlimited) {
    step_ = Step::limited;
    return {};
  }
  std::vector<Offer> found = offers(grid, pipeline, choices, known_s);
  if (!found.empty() || (host_matters_ && !choices.merged)) step_ = Step::done;
  if (found.empty()) {  // a node's stages together need too much host memory
    if (host_matters_) most_labels_ *= most_labels_grow;  // only merged labels overlook that
    host_matters_ = true;
  }
  return found;
}

/// The choices that the analyzer predicts to be fastest, and those beside them where one may be
/// faster than `known_s`. The dynamic program's come by rising bound, below which no prediction is.
std::vector<Offer> FrameSearch::offers(Grid& grid, const Pipeline& pipeline, const Choices& choices,
                                       double known_s) {
  const auto predicted_s = [&](const std::vector<Point>& stages) {
    return grid.predicted_s(plan_of(question_, frame_, stages));
  };
  const std::size_t most = frame_.is_1f1b() && !question_.roughly ? most_offers : 1;
  std::vector<Timed> found;
  for (const Choice& choice : choices.best) {
    if (found.size() == most && choice.least_s >= found.back().seconds) break;
    if (!fits_host(pipeline, choice.stages)) continue;
    const double seconds = predicted_s(choice.stages);
    found.insert(std::ranges::upper_bound(found, seconds, {}, &Timed::seconds),
                 {choice.stages, seconds});
    if (found.size() > most) found.pop_back();
  }
  if (!found.empty() && frame_.num_stages > 1 && found[0].seconds < known_s * worth_steps)
    for (Timed& beside : descend(pipeline, predicted_s, found, most, known_s))
      found.push_back(std::move(beside));
  std::vector<Offer> offers;
  for (Timed& choice : found) {
    plan::Plan plan = plan_of(question_, frame_, choice.stages);
    offers.push_back({std::move(plan), std::move(choice.stages), choice.seconds});
  }
  return offers;
}

void FrameSearch::strike(int after, const Point& point) {
  fronts_->strike({frame_, point.layout, after}, point.strategy);
  step_ = Step::limited;
  ends_tried_ = 0;
}

void FrameSearch::take_less_memory(double share) {
  const double error = (1.0 + frame_.memory_error) / share - 1.0;
  frame_.memory_error = std::ceil(error / memory_error_step) * memory_error_step;
  if (frame_.memory_error > most_memory_error) return hold_nothing();
  step_ = Step::limited;
  ends_tried_ = 0;
}

std::optional<double> FrameSearch::confirm(Grid& grid, double known_s) {
  if (frame_.num_stages == 1 || frame_.microbatches == 1 || !frame_.is_1f1b()) return std::nullopt;
  if (double(frame_.num_stages) * double(frame_.layouts.size()) > double(small_points))
    return std::nullopt;
  const std::vector<Part> all = parts(thresholds(known_s));
  for (const Part& part : all) prepare(grid, part);
  const Pipeline pipeline = limited_pipeline(all);
  std::size_t count = 0;
  for (const auto& cells : pipeline.cells)
    for (const Cell& cell : cells) count += cell.points.size();
  if (count > small_points) return std::nullopt;
  return milp_bound_s(pipeline, std::min(glpk_s, question_.deadline.left_s()));
}

}  // namespace brume::tuner
