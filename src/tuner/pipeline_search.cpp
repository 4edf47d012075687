#include "pipeline_search.hpp"

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

/// Cutoffs of a configuration's dynamic programs in units of its bound, one after the other: the
/// nearer the cutoff, the fewer labels there are.
constexpr double cutoffs[] = {1.03, 1.1, 1.3, 2.0, 5.0, infinity};

constexpr double near = 1.12;  ///< a plan known that is nearer to the bound is the cutoff at once

constexpr int threshold_rounds = 3;

/// Candidates of a 1F1B configuration; more would only differ in knobs that hardly matter. Another
/// order has one, because only its best plan is placed.
constexpr std::size_t most_candidates = 4;

constexpr double worth_steps = 1.03;  ///< steps gain so much, of the time of the fastest plan known

// Errors of memory: configurations of the same one share fronts; with more a configuration is given
// up.
constexpr double memory_error_step = 0.01, most_memory_error = 0.5;

constexpr std::size_t most_labels_grow =
    8;  ///< times as many where a merged assignment does not fit

// GLPK settles so many points in milliseconds.
constexpr std::size_t small_points = 400;
constexpr double glpk_s = 2.0;

std::size_t role_of(const PipelineConfig& config, int after) {
  return (after + 1 == config.num_stages ? 2u : 0u) + (after == 0 ? 1u : 0u);
}

/// Most layers of a stage whose points (one a number of layers) take at most this long.
int most_layers(std::span<const Point> points, double threshold_s) {
  for (auto point = points.rbegin(); point != points.rend(); ++point)
    if (point->stable_s <= threshold_s) return point->layers();
  return 0;
}

/// The points of so many layers among those of rising numbers of layers.
std::span<const Point> of_layers(const std::vector<Point>& points, int least, int most) {
  const auto first = std::ranges::lower_bound(points, least, {}, &Point::layers);
  const auto end = std::ranges::upper_bound(points, most, {}, &Point::layers);
  return first < end ? std::span(first, end) : std::span<const Point>();
}

}  // namespace

PipelineSearch::PipelineSearch(const SearchInput& input, std::shared_ptr<Fronts> fronts,
                               PipelineConfig config, double bound_s)
    : input_(input),
      config_(std::move(config)),
      fronts_(std::move(fronts)),
      bound_s_(bound_s),
      most_labels_(input.most_labels) {
  if (bound_s == infinity) step_ = Step::done;
}

std::span<const Point> PipelineSearch::unlimited(int layout, int after) const {
  return unlimited_[layout][role_of(config_, after)];
}

Pipeline PipelineSearch::empty_pipeline() {
  Pipeline pipeline{.config = config_,
                    .messages = *messages_,
                    .num_layers = input_.model.num_layers,
                    .cluster = input_.cluster,
                    .deadline = input_.deadline,
                    .host_matters = host_matters_,
                    .cells = {}};
  pipeline.cells.resize(std::size_t(config_.num_stages));
  return pipeline;
}

Pipeline PipelineSearch::unlimited_pipeline() {
  Pipeline pipeline = empty_pipeline();
  pipeline.host_matters = false;
  for (int after = 0; after < config_.num_stages; ++after)
    for (int layout = 0; layout < int(config_.layouts.size()); ++layout) {
      input_.deadline.check();
      for (const Point& point : unlimited(layout, after))
        pipeline.cells[after].push_back({layout, point.layers(), std::span(&point, 1)});
    }
  return pipeline;
}

/// The meshes that stages of at most such stable times may take, memory or not.
StageCapacities PipelineSearch::capacities(const Thresholds& thresholds_s) const {
  const auto of = [&](int after) {
    std::map<std::pair<int, int>, int> most;  // by group and devices
    for (int layout = 0; layout < int(config_.layouts.size()); ++layout)
      if (const int layers = most_layers(unlimited(layout, after), thresholds_s[after])) {
        const Layout& mesh = config_.layouts[layout];
        int& known = most[{mesh.group, mesh.devices()}];
        known = std::max(known, layers);
      }
    std::vector<MeshCapacity> meshes;
    for (const auto& [mesh, layers] : most) meshes.push_back({mesh.first, mesh.second, layers});
    return meshes;
  };
  StageCapacities capacities;
  for (int after = 0; after < config_.num_stages; ++after) {
    const auto i = std::size_t(after);
    // Stages in between are alike.
    const bool as_before =
        after > 1 && after + 1 < config_.num_stages && thresholds_s[i] == thresholds_s[i - 1];
    capacities.push_back(as_before ? capacities.back() : of(after));
  }
  return capacities;
}

/// Stable times above which a stage has no place in an iteration below `cutoff_s`: it works on all
/// microbatches, and the stages before it, which hold what the later ones cannot, come on top.
PipelineSearch::Thresholds PipelineSearch::thresholds(double cutoff_s) const {
  cutoff_s += longest_early_send_s_;
  Thresholds thresholds_s(std::size_t(config_.num_stages), cutoff_s / config_.microbatches);
  if (cutoff_s == infinity) return thresholds_s;
  for (int round = 0; round < threshold_rounds; ++round) {
    const StageCapacities capacities = this->capacities(thresholds_s);
    int later_layers = 0;  // at most
    for (std::size_t after = 0; after < capacities.size(); ++after) {
      int most = 0;
      for (const MeshCapacity& mesh : capacities[after]) most = std::max(most, mesh.layers);
      later_layers += most;
      const int earlier_layers = std::max(0, input_.model.num_layers - later_layers);
      thresholds_s[after] =
          (cutoff_s - config_.order.fill_share() * fastest_layer_s_ * earlier_layers) /
          config_.microbatches;
    }
  }
  return thresholds_s;
}

Prices PipelineSearch::prices(double threshold_s) const {
  std::vector<int> afters{0};
  if (config_.num_stages > 1) afters.push_back(config_.num_stages - 1);
  if (config_.num_stages > 2) afters.push_back(1);  // and all others between the ends
  std::vector<StageClass> stages;
  for (int after : afters) {
    const bool between = after > 0 && after + 1 < config_.num_stages;
    StageClass& stage_class =
        stages.emplace_back(StageClass{between ? config_.num_stages - 2 : 1, {}});
    std::map<std::tuple<int, int, int>, double> fastest_s;  // by group, devices, layers
    for (int layout = 0; layout < int(config_.layouts.size()); ++layout) {
      const Layout& mesh = config_.layouts[layout];
      for (const Point& p : unlimited(layout, after))
        if (p.stable_s <= threshold_s) {
          const std::tuple key{mesh.group, mesh.devices(), p.layers()};
          const auto known = fastest_s.try_emplace(key, p.fill_s()).first;
          known->second = std::min(known->second, p.fill_s());
        }
    }
    for (const auto& [key, fill_s] : fastest_s) {
      const auto [group, devices, layers] = key;
      stage_class.options.push_back({group, devices, layers, fill_s});
    }
  }
  std::vector<int> devices;
  for (const hardware::NodeGroup& group : input_.cluster.groups) devices.push_back(group.devices());
  return best_prices(stages, input_.model.num_layers, devices, input_.deadline);
}

/// A bound from the fastest slowest stage that can hold all layers, and from round trips.
void PipelineSearch::begin(Grid& grid) {
  const auto [least, most] = std::ranges::minmax(config_.layouts, {}, &Layout::devices);
  const int devices = input_.cluster.devices();
  const bool fills = input_.cluster.num_groups() == 1;
  const std::int64_t stages = config_.num_stages;
  if (stages * least.devices() > devices || (fills && stages * most.devices() < devices))
    return hold_nothing();
  unlimited_.assign(config_.layouts.size(), {});
  std::vector<double> ends;
  for (int layout = 0; layout < int(config_.layouts.size()); ++layout)
    for (int after : {0, std::min(1, config_.num_stages - 1), config_.num_stages - 1}) {
      std::span<const Point>& points = unlimited_[layout][role_of(config_, after)];
      if (points.empty())
        points =
            of_layers(fronts_->unlimited(grid, {config_, layout, after}),
                      config_.least_layers(after), config_.most_layers(input_.model.num_layers));
      for (const Point& p : points) {
        ends.push_back(p.stable_s);
        fastest_layer_s_ = std::min(fastest_layer_s_, p.fill_s() / p.layers());
        longest_early_send_s_ = std::max(longest_early_send_s_, p.early_send_s);
        shortest_layer_s_ = std::min(shortest_layer_s_, p.shortest_s() / p.layers());
      }
    }
  std::ranges::sort(ends);
  const auto fastest = std::ranges::partition_point(ends, [&](double threshold_s) {
    const Thresholds all(std::size_t(config_.num_stages), threshold_s);
    return !enough(capacities(all), input_.model.num_layers, input_.cluster, input_.deadline);
  });
  if (fastest == ends.end()) return hold_nothing();  // devices do not add up
  const double bound_s = std::max(
      config_.microbatches * *fastest - longest_early_send_s_,
      trips(config_, config_.num_stages - 1) * shortest_layer_s_ * input_.model.num_layers);
  bound_s_ = std::max(bound_s_, bound_s * (1.0 - bound_rounding));
  fastest_layer_s_ = std::max(fastest_layer_s_, 0.0);
  messages_.emplace(grid, config_, input_.cluster);
  step_ = next_step_;
}

void PipelineSearch::hold_nothing() {
  bound_s_ = infinity;
  step_ = Step::done;
}

/// Most layers of the other stages; -1 where none of their meshes go with this one.
int PipelineSearch::most_of_others(const Capacity& capacity, int layout, int after) const {
  const Layout& mesh = config_.layouts[layout];
  int others = -1;
  for (std::size_t use = 0; use < capacity.usage().size(); ++use) {
    const int last = capacity.last(after, use);
    if (last < 0 || capacity.usage().left(use, mesh.group) < mesh.devices()) continue;
    const int first =
        capacity.first(after + 1, capacity.usage().with(use, mesh.group, mesh.devices()));
    if (first >= 0) others = std::max(others, last + first);
  }
  return others;
}

/// Fronts that stages below these stable times may take, as far as layers and devices can add up.
std::vector<PipelineSearch::Part> PipelineSearch::parts(const Thresholds& thresholds_s) const {
  const Capacity capacity(capacities(thresholds_s), input_.cluster, input_.deadline);
  const int num_layers = input_.model.num_layers;
  std::vector<Part> parts;
  for (int after = 0; after < config_.num_stages; ++after) {
    const double threshold_s = thresholds_s[after];
    for (int layout = 0; layout < int(config_.layouts.size()); ++layout) {
      input_.deadline.check();
      const int most_here = most_layers(unlimited(layout, after), threshold_s);
      if (most_here == 0) continue;
      const int others = most_of_others(capacity, layout, after);
      const int least_here = std::max(config_.least_layers(after), num_layers - others);
      if (others < 0 || least_here > most_here) continue;
      parts.push_back({layout, after, least_here, most_here, threshold_s});
    }
  }
  return parts;
}

Pipeline PipelineSearch::limited_pipeline(const std::vector<Part>& parts) {
  Pipeline pipeline = empty_pipeline();
  for (const Part& part : parts)
    for (int layers = part.least_layers; layers <= part.most_layers; ++layers) {
      const auto& front = fronts_->front(position(part), layers);
      if (!front.empty())
        pipeline.cells[part.after].push_back({part.layout, layers, std::span(front)});
    }
  return pipeline;
}

const std::vector<PipelineSearch::Part>& PipelineSearch::plan(double known_s) {
  double cutoff_s = bound_s_ * cutoffs[ends_tried_];
  // In other orders the bound tells little of which layers stages should have.
  if (known_s <= bound_s_ * near || !config_.order.is_1f1b()) cutoff_s = known_s;
  Prepared next{known_s, std::min(cutoff_s, known_s), {}, {}};
  next.thresholds_s = thresholds(next.cutoff_s);
  if (step_ == Step::limited) next.parts = parts(next.thresholds_s);
  return prepared_.emplace(std::move(next)).parts;
}

void PipelineSearch::prepare(Grid& grid, const Part& part) {
  fronts_->prepare(grid, position(part), part.least_layers, part.most_layers, part.threshold_s);
}

void PipelineSearch::settle() {
  if (host_matters_) fronts_->count_host();
}

std::vector<Candidate> PipelineSearch::work(Grid& grid) {
  const auto [known_s, cutoff_s, thresholds_s, parts] = *std::exchange(prepared_, std::nullopt);
  const Pipeline pipeline =
      step_ == Step::unlimited ? unlimited_pipeline() : limited_pipeline(parts);
  const Assignments assignments = best_assignments(
      pipeline, thresholds_s, cutoff_s,
      prices((cutoff_s + longest_early_send_s_) / config_.microbatches), most_labels_);
  ++programs_;
  if (assignments.best.empty()) {
    bound_s_ = std::max(bound_s_, cutoff_s);
    if (cutoff_s < known_s) ++ends_tried_;
    if (cutoff_s == infinity) step_ = Step::done;
    return {};
  }
  bound_s_ = std::max(bound_s_, assignments.bound_s * (1.0 - bound_rounding));
  ends_tried_ = 0;
  if (step_ == Step::unlimited) {
    step_ = Step::limited;
    return {};
  }
  std::vector<Candidate> found = candidates(grid, pipeline, assignments, known_s);
  if (!found.empty() || (host_matters_ && !assignments.merged)) step_ = Step::done;
  if (found.empty()) {  // a node's stages together need too much host memory
    if (host_matters_) most_labels_ *= most_labels_grow;  // only merged labels overlook that
    host_matters_ = true;
  }
  return found;
}

/// The assignments that the analyzer predicts to be fastest, and their neighbours where one may be
/// faster than `known_s`. The dynamic program's come by rising bound, below which no prediction is.
std::vector<Candidate> PipelineSearch::candidates(Grid& grid, const Pipeline& pipeline,
                                                  const Assignments& assignments, double known_s) {
  const auto predicted_s = [&](const std::vector<Point>& stages) {
    return grid.predicted_s(plan_of(input_, config_, stages));
  };
  const std::size_t most = config_.order.is_1f1b() && !input_.roughly ? most_candidates : 1;
  std::vector<Timed> found;
  for (const Assignment& assignment : assignments.best) {
    if (found.size() == most && assignment.least_s >= found.back().seconds) break;
    if (!fits_host(pipeline, assignment.stages)) continue;
    const double seconds = predicted_s(assignment.stages);
    found.insert(std::ranges::upper_bound(found, seconds, {}, &Timed::seconds),
                 {assignment.stages, seconds});
    if (found.size() > most) found.pop_back();
  }
  if (!found.empty() && config_.num_stages > 1 && found[0].seconds < known_s * worth_steps)
    for (Timed& beside : descend(pipeline, predicted_s, found, most, known_s))
      found.push_back(std::move(beside));
  std::vector<Candidate> candidates;
  for (Timed& assignment : found) {
    plan::Plan plan = plan_of(input_, config_, assignment.stages);
    candidates.push_back({std::move(plan), std::move(assignment.stages), assignment.seconds});
  }
  return candidates;
}

void PipelineSearch::exclude(int after, const Point& point) {
  fronts_->exclude({config_, point.layout, after}, point.strategy);
  reopen();
}

/// Looks at what fits once more. Of a restored search nothing is priced yet.
void PipelineSearch::reopen() {
  next_step_ = Step::limited;
  step_ = unlimited_.empty() ? Step::begin : next_step_;
  ends_tried_ = 0;
}

void PipelineSearch::restore(bool done, bool bounded, double bound_s, double error) {
  bound_s_ = std::max(bound_s_, bound_s);
  config_.memory_error = std::max(config_.memory_error, error);
  if (bounded) next_step_ = Step::limited;
  if (done) step_ = Step::done;
}

void PipelineSearch::take_less_memory(double share) {
  const double error = (1.0 + config_.memory_error) / share - 1.0;
  config_.memory_error = std::ceil(error / memory_error_step) * memory_error_step;
  if (config_.memory_error > most_memory_error) return hold_nothing();
  reopen();
}

std::optional<double> PipelineSearch::confirm(Grid& grid, double known_s) {
  if (config_.num_stages == 1 || config_.microbatches == 1 || !config_.order.is_1f1b())
    return std::nullopt;
  if (double(config_.num_stages) * double(config_.layouts.size()) > double(small_points))
    return std::nullopt;
  if (unlimited_.empty()) {  // it was restored as done
    begin(grid);
    if (holds_nothing()) return std::nullopt;
    step_ = Step::done;
  }
  const std::vector<Part> all = parts(thresholds(known_s));
  for (const Part& part : all) prepare(grid, part);
  const Pipeline pipeline = limited_pipeline(all);
  std::size_t count = 0;
  for (const auto& cells : pipeline.cells)
    for (const Cell& cell : cells) count += cell.points.size();
  if (count > small_points) return std::nullopt;
  return milp_bound_s(pipeline, std::min(glpk_s, input_.deadline.left_s()));
}

}  // namespace brume::tuner
