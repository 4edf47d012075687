/// @file Mist's prediction of a plan.
#include "mist/counting.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "mist/stage.hpp"

namespace brume::mist {
namespace {

void check(const Case& mist) {
  require(mist.microbatches > 0 && !mist.stages.empty(), Failure::input,
          "a plan has microbatches and stages");
  for (const Stage& stage : mist.stages)
    require(stage.layers > 0 && stage.recomputed >= 0 && stage.recomputed <= stage.layers,
            Failure::input, "a stage recomputes 0 to {} layers, not {}", stage.layers,
            stage.recomputed);
}

StagePrediction stage_of(const Case& mist, std::size_t i) {
  const Stage& stage = mist.stages[i];
  const std::size_t behind = mist.stages.size() - 1 - i;
  const Place place{i == 0, behind == 0, static_cast<int>(behind)};
  const Time time =
      StageTimer(mist, stage).of(stage.strategy).at(stage.layers, stage.recomputed, place);
  const StageMemory memory(mist, stage);
  const Peaks peaks = memory.peaks(stage.layers, stage.recomputed, place);
  const double earlier_mib = place.earlier * peaks.each_earlier;
  const double forward_mib = peaks.forward + earlier_mib;
  const double backward_mib = peaks.backward + earlier_mib;
  return {time.stable_s, time.delta_s, forward_mib, backward_mib,
          memory.margin(place) * std::max(forward_mib, backward_mib)};
}

/// Extras of a stage hide behind the time that the stages before it take.
double iteration_s(const std::vector<StagePrediction>& stages, int microbatches) {
  if (stages.size() == 1) return microbatches * stages[0].stable_s + stages[0].delta_s;
  double fill_s = 0.0;
  double slowest_s = 0.0;
  double exposed_s = stages[0].delta_s;
  for (const StagePrediction& stage : stages) {
    exposed_s = std::max(exposed_s, stage.delta_s - fill_s);
    slowest_s = std::max(slowest_s, stage.stable_s);
    fill_s += stage.stable_s;
  }
  return fill_s + (microbatches - 1) * slowest_s + exposed_s;
}

}  // namespace

Prediction predict(const Case& mist) {
  check(mist);
  Prediction prediction;
  for (std::size_t i = 0; i < mist.stages.size(); ++i)
    prediction.stages.push_back(stage_of(mist, i));
  prediction.iteration_s = iteration_s(prediction.stages, mist.microbatches);
  return prediction;
}

}  // namespace brume::mist
