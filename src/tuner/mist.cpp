#include "tuner/mist.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.hpp"
#include "mist_pipeline.hpp"
#include "search.hpp"

namespace brume::tuner {
namespace {

using analyzer::MistStrategy;

/// The fastest choice so far, and of which shape and strategies.
struct Best {
  const MistShape* shape = nullptr;
  std::vector<MistStrategy> strategies;
  MistChoice choice;
};

void check(const MistJob& job, const MistSpace& space) {
  require(job.num_layers > 0 && job.global_batch > 0 && job.nodes > 0 && job.ranks_per_node > 0,
          Failure::input, "a search has layers, sequences, nodes and devices");
  require(!space.tp.empty() && !space.microbatch.empty() && !space.zero_levels.empty() &&
              !space.offload_weights.empty() && !space.offload_grads.empty() &&
              !space.offload_optimizer.empty() && !space.offload_saved.empty(),
          Failure::input, "a list of the search space is empty");
}

/// Nothing offloaded: few strategies, and often not far from the best.
MistSpace on_device(MistSpace space) {
  for (auto* ratios : {&space.offload_weights, &space.offload_grads, &space.offload_optimizer,
                       &space.offload_saved})
    *ratios = {*std::ranges::min_element(*ratios)};
  return space;
}

void search_shape(const MistShape& shape, const MistSpace& space, Best& best, MistSearch& search) {
  if (shape.bound_s >= best.choice.iteration_s) return;
  ++search.searched;
  std::vector<MistStrategy> strategies = mist_strategies(shape, space);
  const MistFronts fronts = mist_fronts(shape, space, strategies, best.choice.iteration_s, search);
  MistChoice choice = mist_pipeline(shape, fronts, best.choice.iteration_s, search);
  if (!choice.stages.empty()) best = {&shape, std::move(strategies), std::move(choice)};
}

/// The shapes, those first whose plans without offload are fast: the sooner a fast plan is known,
/// the less there is to look at.
std::vector<const MistShape*> promising_first(const std::vector<MistShape>& shapes,
                                              const MistSpace& space, Best& best,
                                              MistSearch& search) {
  std::vector<std::pair<double, const MistShape*>> keys;
  for (const MistShape& shape : shapes) {
    Best alone;
    search_shape(shape, on_device(space), alone, search);
    const double s = alone.choice.iteration_s;
    keys.emplace_back(std::isfinite(s) ? s : 1.5 * shape.bound_s, &shape);
    if (s < best.choice.iteration_s) best = std::move(alone);
  }
  std::ranges::sort(keys);
  std::vector<const MistShape*> ordered;
  for (const auto& key : keys) ordered.push_back(key.second);
  return ordered;
}

analyzer::MistCase plan_of(const Best& best) {
  analyzer::MistCase plan = best.shape->mist;
  for (std::size_t i = 0; i < best.choice.stages.size(); ++i) {
    analyzer::MistStage stage = best.shape->stage;
    stage.layers = best.choice.layers[i];
    stage.recomputed = best.choice.stages[i].recomputed;
    stage.strategy = best.strategies[std::size_t(best.choice.stages[i].strategy)];
    plan.stages.push_back(stage);
  }
  return plan;
}

}  // namespace

MistTuned tune_mist(const MistJob& job, const MistSpace& space) {
  check(job, space);
  const Stopwatch watch;
  const std::vector<MistShape> shapes = mist_shapes(job, space);
  Best best;
  MistSearch search;
  const auto ordered = promising_first(shapes, space, best, search);
  search.searched = 0;
  for (const MistShape* shape : ordered) search_shape(*shape, space, best, search);
  require(best.shape != nullptr, Failure::infeasible,
          "by Mist's counting no plan fits {} devices of {} GiB", job.nodes * job.ranks_per_node,
          job.hardware.memory_gib);
  search.shapes = int(shapes.size());
  search.seconds = watch.seconds();
  MistTuned tuned{plan_of(best), {}, search};
  tuned.prediction = analyzer::analyze_mist(tuned.plan);
  for (const auto& stage : tuned.prediction.stages)
    require(stage.needed_mib <= analyzer::mist_usable_mib(job.hardware), Failure::bug,
            "a tuned stage needs {} MiB", stage.needed_mib);
  return tuned;
}

}  // namespace brume::tuner
