#include "search.hpp"

#include <algorithm>
#include <utility>

namespace brume::tuner {
namespace {

constexpr int most_points = 60;  ///< of one front and number of layers, for the MILP
constexpr double closed_gap = 1e-6;
constexpr std::size_t small_points = 400;  ///< so many GLPK settles in milliseconds

/// One stage: G t + max(0, d), read off.
Solution best_single(const Pipeline& pipeline) {
  Solution solution;
  for (const Point& point : pipeline.points[0]) {
    const double iteration_s = iteration_time({point}, pipeline.microbatches);
    if (!solution.best || iteration_s < solution.best->iteration_s)
      solution.best = Choice{{point}, iteration_s};
  }
  if (solution.best) solution.bound_s = solution.best->iteration_s;
  return solution;
}

Pipeline fronts_of(const Pipeline& feasible) {
  Pipeline fronts = feasible;
  for (auto& points : fronts.points)
    points = pareto_front(std::move(points), feasible.host_matters);
  return fronts;
}

/// Whether the largest host bytes of a node's stages could exceed the limit together.
bool host_can_bind(const Pipeline& pipeline) {
  std::vector<Point> largest;
  for (const auto& points : pipeline.points)
    largest.push_back(points.empty() ? Point{}
                                     : *std::ranges::max_element(points, {}, &Point::host_bytes));
  return !fits_host(pipeline, largest);
}

/// Whether what may beat `known` is little enough for GLPK to prove, whatever else proved it
/// already.
bool small_for_glpk(Pipeline fronts, const Choice& known) {
  if (fronts.num_stages() == 1) return false;
  prune(fronts, known.iteration_s);
  std::size_t count = 0;
  for (const auto& points : fronts.points) count += points.size();
  return count <= small_points;
}

}  // namespace

deck::SearchKeys saving_nothing(deck::SearchKeys keys) {
  const auto least = [](std::vector<double>& ratios) {
    if (!ratios.empty()) ratios = {*std::ranges::min_element(ratios)};
  };
  keys.recompute = false;
  least(keys.optim_offload);
  least(keys.act_offload);
  return keys;
}

Searcher::Searcher(Question question, Grid& grid, const Stopwatch& watch)
    : question_(std::move(question)), watch_(watch), grid_(grid) {
  for (const Shape& shape :
       shapes(question_.model, question_.global_batch, question_.cluster, question_.keys))
    bound(candidates_.emplace_back(
        Candidate{.shape = shape, .feasible = pipeline_of(shape), .solution = {}}));
}

double Searcher::seconds_left() const {
  return std::max(0.0, question_.keys.time_limit_s - watch_.seconds());
}

Pipeline Searcher::pipeline_of(const Shape& shape) const {
  Pipeline pipeline;
  pipeline.num_layers = question_.model.num_layers;
  pipeline.microbatches = shape.microbatches;
  pipeline.points.resize(std::size_t(shape.num_stages));
  pipeline.ranks_on_node = shape.devices_per_node;
  pipeline.stages_per_node =
      shape.nodes > 1 ? 1
                      : std::max(1, question_.cluster.devices_per_node / shape.devices_per_node);
  pipeline.host_limit_bytes = double(question_.cluster.host_memory_bytes);
  return pipeline;
}

std::vector<Point> Searcher::points(const Shape& shape, int stage, const deck::SearchKeys& keys) {
  std::vector<Point> points = grid_.points(shape, stage, keys);
  statistics_.policies += std::int64_t(points.size());
  statistics_.evaluations += std::int64_t(points.size()) * Grid::num_expressions;
  return points;
}

/// What the shape takes at least, were memory no matter: few strategies show whether it deserves
/// more.
void Searcher::bound(Candidate& candidate) {
  Pipeline pipeline = candidate.feasible;
  const deck::SearchKeys keys = saving_nothing(question_.keys);
  for (int stage = 0; stage < candidate.shape.num_stages; ++stage)
    pipeline.points[std::size_t(stage)] = points(candidate.shape, stage, keys);
  candidate.solution = {.best = {}, .bound_s = relax(pipeline).bound_s};
}

/// Evaluates all strategies and keeps those that fit.
void Searcher::expand(Candidate& candidate) {
  candidate.expanded = true;
  candidate.solution = {};
  Pipeline& pipeline = candidate.feasible;
  for (int stage = 0; stage < candidate.shape.num_stages; ++stage) {
    auto& fit = pipeline.points[std::size_t(stage)] =
        points(candidate.shape, stage, question_.keys);
    std::erase_if(fit, [&](const Point& p) {
      return p.device_bytes > double(question_.cluster.memory_bytes) ||
             p.host_bytes * pipeline.ranks_on_node > pipeline.host_limit_bytes;
    });
    statistics_.feasible += std::int64_t(fit.size());
    if (fit.empty()) return;
  }
  pipeline.host_matters = host_can_bind(pipeline);
  estimate(candidate);
}

/// Bound and a first choice, without the MILP.
void Searcher::estimate(Candidate& candidate) {
  const Pipeline fronts = fronts_of(candidate.feasible);
  candidate.solution = candidate.shape.num_stages == 1 ? best_single(fronts) : relax(fronts);
  const Solution& s = candidate.solution;
  candidate.solved = s.best && s.bound_s >= s.best->iteration_s * (1.0 - closed_gap) &&
                     !small_for_glpk(fronts, *s.best);
}

/// Closes what the estimate left open, as far as time allows.
void Searcher::solve(Candidate& candidate) {
  Pipeline fronts = fronts_of(candidate.feasible);
  if (candidate.solution.best) prune(fronts, candidate.solution.best->iteration_s);
  double slower_s = 0.0, slowest_s = 0.0;
  if (!fronts.host_matters)
    for (auto& points : fronts.points) {
      const double lost_s = thin(points, most_points);
      slower_s += lost_s;
      slowest_s = std::max(slowest_s, lost_s);
    }
  // A choice of points left out is at most this much faster than one of those that stand for them.
  const double thinned_s = slower_s + (fronts.microbatches - 1) * slowest_s;
  if (seconds_left() > 0.0) {
    const double before_s = candidate.solution.bound_s;
    candidate.solution =
        solve_milp(fronts, candidate.solution, seconds_left(), statistics_.milp_solves);
    candidate.solution.bound_s = std::max(before_s, candidate.solution.bound_s - thinned_s);
  }
  candidate.solved = candidate.solution.best.has_value();
}

std::optional<Found> Searcher::next() {
  while (true) {
    std::erase_if(candidates_, [](const Candidate& c) { return c.hopeless(); });
    if (candidates_.empty()) return std::nullopt;
    const auto first = std::ranges::min_element(candidates_, {}, &Candidate::key_s);
    if (first->solved) {
      double bound_s = first->solution.bound_s;
      for (const Candidate& other : candidates_)
        bound_s = std::min(bound_s, other.solution.bound_s);
      const Choice& best = *first->solution.best;
      return Found{.plan = plan_of(first->shape, best.stages),
                   .shape = int(first - candidates_.begin()),
                   .iteration_s = best.iteration_s,
                   .bound_s = bound_s};
    }
    if (!first->expanded) {
      expand(*first);
      continue;
    }
    solve(*first);
    if (!first->solved) candidates_.erase(first);  // infeasible together, or out of time
  }
}

void Searcher::strike(const Found& found, int stage) {
  Candidate& candidate = candidates_[std::size_t(found.shape)];
  auto& points = candidate.feasible.points[std::size_t(stage)];
  const Point struck = candidate.solution.best->stages[std::size_t(stage)];
  std::erase_if(points, [&](const Point& point) { return point.same_strategy(struck); });
  candidate.solved = false;
  candidate.solution = {};
  if (!points.empty()) estimate(candidate);
}

void Searcher::drop(const Found& found) { candidates_.erase(candidates_.begin() + found.shape); }

plan::Plan Searcher::plan_of(const Shape& shape, const std::vector<Point>& stages) const {
  plan::Plan plan{
      .global_batch = question_.global_batch, .microbatches = shape.microbatches, .stages = {}};
  int first_layer = 0;
  for (const Point& point : stages) {
    plan.stages.push_back({.first_layer = first_layer,
                           .layers = point.layers,
                           .nodes = shape.nodes,
                           .devices_per_node = shape.devices_per_node,
                           .microbatch = shape.microbatch,
                           .dp = shape.dp,
                           .tp = shape.tp,
                           .zero_level = point.zero_level,
                           .ckpt_layers = point.ckpt_layers,
                           .optim_offload_ratio = point.optim_offload_ratio,
                           .act_offload_ratio = point.act_offload_ratio});
    first_layer += point.layers;
  }
  return plan;
}

std::optional<plan::Plan> Searcher::smallest() {
  std::optional<plan::Plan> smallest;
  double least_bytes = std::numeric_limits<double>::infinity();
  for (const Shape& shape :
       shapes(question_.model, question_.global_batch, question_.cluster, question_.keys)) {
    Pipeline pipeline = pipeline_of(shape);
    for (int stage = 0; stage < shape.num_stages; ++stage) {
      auto& points = pipeline.points[std::size_t(stage)] =
          grid_.points(shape, stage, question_.keys);
      std::erase_if(points, [&](const Point& p) {
        return p.host_bytes * pipeline.ranks_on_node * pipeline.stages_per_node >
               pipeline.host_limit_bytes;
      });
    }
    const std::vector<Point> stages = emptiest(pipeline);
    if (stages.empty()) continue;
    const double bytes = std::ranges::max_element(stages, {}, &Point::device_bytes)->device_bytes;
    if (bytes >= least_bytes) continue;
    least_bytes = bytes;
    smallest = plan_of(shape, stages);
  }
  return smallest;
}

}  // namespace brume::tuner
