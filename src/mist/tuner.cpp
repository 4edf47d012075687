#include "mist/tuner.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/error.hpp"
#include "pipeline.hpp"

namespace brume::mist {
namespace {

/// The fastest choice so far, and of which shape and strategies.
struct Best {
  const Shape* shape = nullptr;
  std::vector<Strategy> strategies;
  Choice choice;
};

void check(const Job& job, const Space& space) {
  require(job.num_layers > 0 && job.global_batch > 0 && job.nodes > 0 && job.ranks_per_node > 0,
          Failure::input, "a search has layers, sequences, nodes and devices");
  require(!space.tp.empty() && !space.microbatch.empty() && !space.zero_levels.empty() &&
              !space.offload_weights.empty() && !space.offload_grads.empty() &&
              !space.offload_optimizer.empty() && !space.offload_saved.empty(),
          Failure::input, "a list of the search space is empty");
}

/// Nothing offloaded: few strategies, and often not far from the best.
Space on_device(Space space) {
  for (auto* ratios : {&space.offload_weights, &space.offload_grads, &space.offload_optimizer,
                       &space.offload_saved})
    *ratios = {*std::ranges::min_element(*ratios)};
  return space;
}

void search_shape(const Shape& shape, const Space& space, Best& best, Search& search) {
  if (shape.bound_s >= best.choice.iteration_s) return;
  ++search.searched;
  std::vector<Strategy> strategies = strategies_of(shape, space);
  const Fronts fronts = find_fronts(shape, space, strategies, best.choice.iteration_s, search);
  Choice choice = choose(shape, fronts, best.choice.iteration_s, search);
  if (!choice.stages.empty()) best = {&shape, std::move(strategies), std::move(choice)};
}

/// The shapes, those first whose plans without offload are fast: the sooner a fast plan is known,
/// the less there is to look at.
std::vector<const Shape*> promising_first(const std::vector<Shape>& shapes, const Space& space,
                                          Best& best, Search& search) {
  std::vector<std::pair<double, const Shape*>> keys;
  for (const Shape& shape : shapes) {
    Best alone;
    search_shape(shape, on_device(space), alone, search);
    const double s = alone.choice.iteration_s;
    keys.emplace_back(std::isfinite(s) ? s : 1.5 * shape.bound_s, &shape);
    if (s < best.choice.iteration_s) best = std::move(alone);
  }
  std::ranges::sort(keys);
  std::vector<const Shape*> ordered;
  for (const auto& key : keys) ordered.push_back(key.second);
  return ordered;
}

Case plan_of(const Best& best) {
  Case plan = best.shape->mist;
  for (std::size_t i = 0; i < best.choice.stages.size(); ++i) {
    Stage stage = best.shape->stage;
    stage.layers = best.choice.layers[i];
    stage.recomputed = best.choice.stages[i].recomputed;
    stage.strategy = best.strategies[best.choice.stages[i].strategy];
    plan.stages.push_back(stage);
  }
  return plan;
}

}  // namespace

Tuned tune(const Job& job, const Space& space) {
  check(job, space);
  const auto start = std::chrono::steady_clock::now();
  const std::vector<Shape> shapes = find_shapes(job, space);
  Best best;
  Search search;
  const auto ordered = promising_first(shapes, space, best, search);
  search.searched = 0;
  for (const Shape* shape : ordered) search_shape(*shape, space, best, search);
  require(best.shape != nullptr, Failure::infeasible,
          "by Mist's counting no plan fits {} devices of {} GiB", job.nodes * job.ranks_per_node,
          job.hardware.memory_gib);
  search.shapes = int(shapes.size());
  search.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  Tuned tuned{plan_of(best), {}, search};
  tuned.prediction = predict(tuned.plan);
  for (const auto& stage : tuned.prediction.stages)
    require(stage.needed_mib <= usable_mib(job.hardware), Failure::bug,
            "a tuned stage needs {} MiB", stage.needed_mib);
  return tuned;
}

}  // namespace brume::mist
