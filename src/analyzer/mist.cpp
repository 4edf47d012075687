/// @file Mist's prediction of a plan.
#include "analyzer/mist.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "mist_stage.hpp"

namespace brume::analyzer {
namespace {

void check(const MistCase& mist) {
  require(mist.microbatches > 0 && !mist.stages.empty(), Failure::input,
          "a plan has microbatches and stages");
  for (const MistStage& stage : mist.stages)
    require(stage.layers > 0 && stage.recomputed >= 0 && stage.recomputed <= stage.layers,
            Failure::input, "a stage recomputes 0 to {} layers, not {}", stage.layers,
            stage.recomputed);
}

MistStagePrediction stage_of(const MistCase& mist, std::size_t i) {
  const std::size_t behind = mist.stages.size() - 1 - i;
  const MistPlace place{i == 0, behind == 0, static_cast<int>(behind)};
  MistStagePrediction prediction = mist_stage_memory(mist, mist.stages[i], place);
  const MistStagePrediction time = mist_stage_time(mist, mist.stages[i], place);
  prediction.stable_s = time.stable_s;
  prediction.delta_s = time.delta_s;
  return prediction;
}

/// Extras of a stage hide behind the time that the stages before it take.
double iteration_s(const std::vector<MistStagePrediction>& stages, int microbatches) {
  if (stages.size() == 1) return microbatches * stages[0].stable_s + stages[0].delta_s;
  double fill_s = 0.0;
  double slowest_s = 0.0;
  double exposed_s = stages[0].delta_s;
  for (const MistStagePrediction& stage : stages) {
    exposed_s = std::max(exposed_s, stage.delta_s - fill_s);
    slowest_s = std::max(slowest_s, stage.stable_s);
    fill_s += stage.stable_s;
  }
  return fill_s + (microbatches - 1) * slowest_s + exposed_s;
}

}  // namespace

MistPrediction analyze_mist(const MistCase& mist) {
  check(mist);
  MistPrediction prediction;
  for (std::size_t i = 0; i < mist.stages.size(); ++i)
    prediction.stages.push_back(stage_of(mist, i));
  prediction.iteration_s = iteration_s(prediction.stages, mist.microbatches);
  return prediction;
}

}  // namespace brume::analyzer
