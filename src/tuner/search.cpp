#include "search.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace brume::tuner {
namespace {

constexpr std::size_t small_points = 400;  ///< so many GLPK settles in milliseconds
constexpr double glpk_seconds = 2.0;
constexpr double rounding = 1e-9;

/// Ends of the first intervals, in units of the fastest possible slowest stage.
constexpr double first_ends[] = {1.02, 1.1, 1.3, 2.0, 4.0, infinity};

std::size_t role_of(const Frame& frame, int after) {
  return (after + 1 == frame.num_stages ? 2u : 0u) + (after == 0 ? 1u : 0u);
}

/// Most layers of a stage whose points (one a number of layers) take at most this long.
int most_layers(const std::vector<Point>& points, double threshold_s) {
  for (auto point = points.rbegin(); point != points.rend(); ++point)
    if (point->stable_s <= threshold_s) return point->layers;
  return 0;
}

/// Stable times of a pipeline's points within (over_s, below_s), in rising order.
std::vector<double> times_between(const Pipeline& pipeline, double over_s, double below_s) {
  std::vector<double> times;
  for (const auto& cells : pipeline.cells)
    for (const Cell& cell : cells)
      for (const Point& p : cell.points)
        if (p.stable_s > over_s && p.stable_s < below_s) times.push_back(p.stable_s);
  std::ranges::sort(times);
  times.erase(std::unique(times.begin(), times.end()), times.end());
  return times;
}

}  // namespace

plan::Plan plan_of(const Question& question, const Frame& frame, const std::vector<Point>& stages) {
  plan::Plan plan{
      .global_batch = question.global_batch, .microbatches = frame.microbatches, .stages = {}};
  int first_layer = 0;
  for (const Point& point : stages) {
    const Layout& mesh = frame.layouts[std::size_t(point.layout)];
    plan.stages.push_back({.first_layer = first_layer,
                           .layers = point.layers,
                           .nodes = mesh.nodes,
                           .devices_per_node = mesh.devices_per_node,
                           .microbatch = mesh.microbatch,
                           .dp = mesh.dp,
                           .tp = mesh.tp,
                           .zero_level = point.zero_level,
                           .ckpt_layers = point.ckpt_layers,
                           .weight_offload_ratio = point.ratios[0],
                           .grad_offload_ratio = point.ratios[1],
                           .optim_offload_ratio = point.ratios[2],
                           .act_offload_ratio = point.ratios[3]});
    first_layer += point.layers;
  }
  return plan;
}

Searcher::Searcher(Question question, Grid& grid, const Stopwatch& watch)
    : question_(std::move(question)),
      watch_(watch),
      grid_(grid),
      axes_(question_.keys),
      limits_{double(question_.cluster.memory_bytes), double(question_.cluster.host_memory_bytes)} {
  for (Frame& frame :
       frames(question_.model, question_.global_batch, question_.cluster, question_.keys)) {
    candidates_.emplace_back(std::move(frame), grid_, axes_, limits_);
    bound(candidates_.back());
  }
}

double Searcher::seconds_left() const {
  return std::max(0.0, question_.keys.time_limit_s - watch_.seconds());
}

// --- bounds without memory limits ----------------------------------------------------------------

const std::vector<Point>& Searcher::unlimited(const Candidate& candidate, int layout,
                                              int after) const {
  return candidate.unlimited[std::size_t(layout)][role_of(candidate.frame, after)];
}

Pipeline Searcher::pipeline_of(const Candidate& candidate) const {
  Pipeline pipeline{.frame = candidate.frame,
                    .num_layers = question_.model.num_layers,
                    .devices = question_.cluster.devices(),
                    .devices_per_node = question_.cluster.devices_per_node,
                    .node_host_bytes = limits_.node_host_bytes,
                    .host_matters = candidate.host_matters,
                    .cells = {}};
  pipeline.cells.resize(std::size_t(candidate.frame.num_stages));
  return pipeline;
}

Pipeline Searcher::unlimited_pipeline(const Candidate& candidate) const {
  Pipeline pipeline = pipeline_of(candidate);
  pipeline.host_matters = false;
  for (int after = 0; after < candidate.frame.num_stages; ++after)
    for (int layout = 0; layout < int(candidate.frame.layouts.size()); ++layout)
      for (const Point& point : unlimited(candidate, layout, after))
        pipeline.cells[std::size_t(after)].push_back({layout, point.layers, std::span(&point, 1)});
  return pipeline;
}

/// The meshes that stages of at most `threshold_s` may take, memory or not.
Rooms Searcher::rooms(const Candidate& candidate, double threshold_s) const {
  const Frame& frame = candidate.frame;
  const auto of = [&](int after) {
    std::map<int, int> most;  // by devices
    for (int layout = 0; layout < int(frame.layouts.size()); ++layout)
      if (const int layers = most_layers(unlimited(candidate, layout, after), threshold_s)) {
        int& known = most[frame.layouts[std::size_t(layout)].devices()];
        known = std::max(known, layers);
      }
    std::vector<Room> meshes;
    for (const auto& [devices, layers] : most) meshes.push_back({devices, layers});
    return meshes;
  };
  // All stages in between are alike.
  Rooms rooms(std::size_t(frame.num_stages), of(std::min(1, frame.num_stages - 1)));
  rooms.front() = of(0);
  rooms.back() = of(frame.num_stages - 1);
  return rooms;
}

/// A bound on the sum of stable times, memory or not.
Prices Searcher::prices(const Candidate& candidate, double threshold_s) const {
  const Frame& frame = candidate.frame;
  std::vector<int> afters{0};
  if (frame.num_stages > 1) afters.push_back(frame.num_stages - 1);
  if (frame.num_stages > 2) afters.push_back(1);  // and all others between the ends
  std::vector<Alike> stages;
  for (int after : afters) {
    const bool between = after > 0 && after + 1 < frame.num_stages;
    Alike& alike = stages.emplace_back(Alike{between ? frame.num_stages - 2 : 1, {}});
    for (int layout = 0; layout < int(frame.layouts.size()); ++layout)
      for (const Point& p : unlimited(candidate, layout, after))
        if (p.stable_s <= threshold_s)
          alike.options.push_back(
              {frame.layouts[std::size_t(layout)].devices(), p.layers, p.stable_s});
  }
  return best_prices(stages, question_.model.num_layers, question_.cluster.devices());
}

/// The fastest slowest stage that can hold all layers, and what all stages take together.
void Searcher::bound(Candidate& candidate) {
  const Frame& frame = candidate.frame;
  const auto [least, most] = std::ranges::minmax(frame.layouts, {}, &Layout::devices);
  const int devices = question_.cluster.devices();
  if (frame.num_stages * least.devices() > devices || frame.num_stages * most.devices() < devices)
    return;
  candidate.unlimited.assign(frame.layouts.size(), std::vector<std::vector<Point>>(4));
  std::vector<double> ends;
  double layer_s = infinity, stage_s = infinity;
  for (int layout = 0; layout < int(frame.layouts.size()); ++layout)
    for (int after : {0, std::min(1, frame.num_stages - 1), frame.num_stages - 1}) {
      auto& points = candidate.unlimited[std::size_t(layout)][role_of(frame, after)];
      if (points.empty()) points = candidate.fronts.unlimited(layout, after);
      for (const Point& p : points) {
        ends.push_back(p.stable_s);
        layer_s = std::min(layer_s, p.stable_s / p.layers);
        stage_s = std::min(stage_s, p.stable_s);
      }
    }
  std::ranges::sort(ends);
  const auto fastest = std::ranges::partition_point(ends, [&](double threshold_s) {
    return !enough(rooms(candidate, threshold_s), question_.model.num_layers, devices,
                   question_.cluster.devices_per_node);
  });
  if (fastest == ends.end()) return;  // devices do not add up
  candidate.fastest_stage_s = *fastest;
  candidate.other_s =
      std::max(layer_s * question_.model.num_layers, *fastest + (frame.num_stages - 1) * stage_s);
  candidate.least_bound_s = (frame.microbatches - 1) * *fastest + candidate.other_s;
  reopen(candidate);
}

/// All intervals again, under the bound that is known.
void Searcher::reopen(Candidate& candidate) {
  const Frame& frame = candidate.frame;
  candidate.open.clear();
  const double fastest_s = candidate.fastest_stage_s;
  double over_s = 0.0;
  for (double end : first_ends) {
    // The slowest stage counts only beside other microbatches.
    if (frame.microbatches == 1 || frame.num_stages == 1) end = infinity;
    const double most_s = end * fastest_s;
    const double slowest_s = std::max(over_s, fastest_s);
    candidate.open.push_back(
        {.over_s = over_s,
         .most_s = most_s,
         .bound_s = std::max(candidate.least_bound_s,
                             (frame.microbatches - 1) * slowest_s + candidate.other_s)});
    over_s = most_s;
    if (end == infinity) break;
  }
}

// --- one interval --------------------------------------------------------------------------------

/// The points that stages of at most `most_s` may take, as far as layers and devices can add up.
Pipeline Searcher::limited_pipeline(Candidate& candidate, double most_s) {
  Pipeline pipeline = pipeline_of(candidate);
  const Rooms meshes = rooms(candidate, most_s);
  const Capacity room(meshes, pipeline.devices, pipeline.devices_per_node);
  for (int after = 0; after < candidate.frame.num_stages; ++after)
    for (int layout = 0; layout < int(candidate.frame.layouts.size()); ++layout) {
      const int most_here = most_layers(unlimited(candidate, layout, after), most_s);
      if (most_here == 0) continue;
      const int devices = candidate.frame.layouts[std::size_t(layout)].devices();
      int others = -1;
      for (int used = 0; used + devices <= pipeline.devices; used += room.unit()) {
        const int last = room.last(after, used), first = room.first(after + 1, used + devices);
        if (last >= 0 && first >= 0) others = std::max(others, last + first);
      }
      const int least_here = std::max(1, pipeline.num_layers - others);
      if (others < 0 || least_here > most_here) continue;
      candidate.fronts.prepare(layout, after, least_here, most_here);
      for (int layers = least_here; layers <= most_here; ++layers) {
        const auto& front = candidate.fronts.front(layout, after, layers);
        if (!front.empty()) pipeline.cells[std::size_t(after)].push_back({layout, layers, front});
      }
    }
  return pipeline;
}

void Searcher::work_on(Candidate& candidate, std::size_t index) {
  Interval interval = candidate.open[index];
  candidate.open.erase(candidate.open.begin() + std::ptrdiff_t(index));
  const double slowest_s = std::max(interval.over_s, candidate.fastest_stage_s);
  const double steady_s = (candidate.frame.microbatches - 1) * slowest_s;
  if (!interval.prices) {
    interval.prices = prices(candidate, interval.most_s);
    interval.bound_s =
        std::max(interval.bound_s, steady_s + interval.prices->sum_s * (1.0 - rounding));
    candidate.open.push_back(interval);
    return;
  }
  const Pipeline pipeline = interval.limited ? limited_pipeline(candidate, interval.most_s)
                                             : unlimited_pipeline(candidate);
  const Least least = least_sum(pipeline, interval.most_s, known_s() - steady_s, *interval.prices);
  ++programs_;
  if (least.sum_s == infinity) return;  // no choice at all
  interval.bound_s = std::max(interval.bound_s, steady_s + least.sum_s);
  if (interval.limited && !least.stages.empty()) return take(candidate, interval, pipeline, least);
  interval.limited = true;
  candidate.open.push_back(interval);
}

/// Keeps a choice; what is left open are slowest stages faster than its own.
void Searcher::take(Candidate& candidate, Interval interval, const Pipeline& pipeline,
                    const Least& least) {
  const int steps = candidate.frame.microbatches - 1;
  if (!candidate.host_matters && !fits_host(pipeline, least.stages)) {
    candidate.host_matters = true;
    candidate.fronts.count_host();
    candidate.open.push_back(interval);
    return;
  }
  const double iteration_s = iteration_time(least.stages, candidate.frame.microbatches);
  if (!candidate.best || iteration_s < candidate.best->iteration_s) {
    candidate.best = Choice{least.stages, iteration_s};
    candidate.confirmed = false;
  }
  const double slowest_s = std::ranges::max_element(least.stages, {}, &Point::stable_s)->stable_s;
  if (steps == 0) return;
  const std::vector<double> faster = times_between(pipeline, interval.over_s, slowest_s);
  if (faster.empty()) return;
  const auto open = [&](double over_s, double next_s, double most_s) {
    candidate.open.push_back({.over_s = over_s,
                              .most_s = most_s,
                              .bound_s = std::max(interval.bound_s, steps * next_s + least.sum_s),
                              .limited = true,
                              .prices = interval.prices});
  };
  const auto middle = std::ranges::lower_bound(faster, (faster.front() + slowest_s) / 2.0);
  if (middle != faster.begin()) open(interval.over_s, faster.front(), *std::prev(middle));
  if (middle != faster.end())
    open(middle == faster.begin() ? interval.over_s : *std::prev(middle), *middle, faster.back());
}

// --- all frames ----------------------------------------------------------------------------------

Searcher::Front Searcher::most_promising() {
  Front front;
  for (Candidate& candidate : candidates_)
    for (std::size_t i = 0; i < candidate.open.size(); ++i)
      if (candidate.open[i].bound_s < front.bound_s)
        front = {&candidate, i, candidate.open[i].bound_s};
  return front;
}

Searcher::Candidate* Searcher::fastest() {
  Candidate* best = nullptr;
  for (Candidate& candidate : candidates_)
    if (candidate.best && (!best || candidate.best->iteration_s < best->best->iteration_s))
      best = &candidate;
  return best;
}

double Searcher::known_s() const {
  double known_s = infinity;
  for (const Candidate& candidate : candidates_)
    if (candidate.best) known_s = std::min(known_s, candidate.best->iteration_s);
  return known_s;
}

std::optional<Found> Searcher::next() {
  while (true) {
    const Front front = most_promising();
    Candidate* best = fastest();
    if (!best && !front.candidate) return std::nullopt;
    const double gap = std::max(question_.keys.gap, rounding * 1e-3);
    const bool closed = best && front.bound_s >= best->best->iteration_s * (1.0 - gap);
    if (best && (closed || seconds_left() == 0.0)) {
      const double before_s = best->best->iteration_s;
      confirm(*best);
      if (best->best->iteration_s < before_s) continue;
      std::size_t index = 0;
      while (&candidates_[index] != best) ++index;
      return Found{.plan = plan_of(question_, best->frame, best->best->stages),
                   .frame = index,
                   .iteration_s = before_s,
                   .bound_s = std::min(front.bound_s, before_s),
                   .confirmed = best->confirmed};
    }
    work_on(*front.candidate, front.interval);
  }
}

/// Asks GLPK for a faster choice where the points that may be part of one are few.
void Searcher::confirm(Candidate& candidate) {
  const Frame& frame = candidate.frame;
  if (candidate.confirmed || frame.num_stages == 1 || frame.microbatches == 1) return;
  const double known_s = candidate.best->iteration_s;
  const int steps = frame.microbatches - 1;
  const double other_s = candidate.other_s;
  if (double(frame.num_stages) * double(frame.layouts.size()) > double(small_points)) return;
  const Pipeline all = limited_pipeline(candidate, (known_s - other_s) / steps);
  std::deque<std::vector<Point>> kept;
  Pipeline pipeline = pipeline_of(candidate);
  std::size_t count = 0;
  for (std::size_t after = 0; after < all.cells.size(); ++after)
    for (const Cell& cell : all.cells[after]) {
      std::vector<Point>& points = kept.emplace_back();
      std::ranges::copy_if(cell.points, std::back_inserter(points), [&](const Point& p) {
        return steps * std::max(p.stable_s, candidate.fastest_stage_s) +
                   std::max(other_s, p.whole_s()) <=
               known_s;
      });
      count += points.size();
      if (!points.empty())
        pipeline.cells[after].push_back({cell.layout, cell.layers, std::span(points)});
    }
  if (count > small_points) return;
  const Proof proof =
      solve_milp(pipeline, known_s, std::min(glpk_seconds, std::max(0.1, seconds_left())));
  ++milp_solves_;
  if (proof.better)
    candidate.best = proof.better;
  else
    candidate.confirmed = proof.bound_s >= known_s * (1.0 - 1e-6);
}

void Searcher::strike(const Found& found, int stage) {
  Candidate& candidate = candidates_[found.frame];
  const Point point = candidate.best->stages[std::size_t(stage)];
  candidate.fronts.strike(candidate.frame.num_stages - 1 - stage, point);
  // Without one of its strategies a frame is not faster than with it.
  double least_s = candidate.best->iteration_s;
  for (const Interval& interval : candidate.open) least_s = std::min(least_s, interval.bound_s);
  candidate.best.reset();
  candidate.confirmed = false;
  candidate.least_bound_s = std::max(candidate.least_bound_s, least_s);
  reopen(candidate);
}

void Searcher::drop(const Found& found) {
  candidates_[found.frame].open.clear();
  candidates_[found.frame].best.reset();
}

void Searcher::add_to(Search& statistics) const {
  for (const Candidate& candidate : candidates_) {
    statistics.policies += candidate.fronts.strategies();
    statistics.feasible += candidate.fronts.feasible();
  }
  statistics.evaluations = grid_.evaluations();
  statistics.milp_solves += milp_solves_;
  statistics.dynamic_programs += programs_;
}

}  // namespace brume::tuner
