#include "ranked.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "base/error.hpp"
#include "base/units.hpp"
#include "schedule/simulate.hpp"

namespace brume::tuner {
namespace {

/// Sets the peaks of stages that placement finds off by more than 1 % and 1 MiB to what it takes.
/// @return the largest peak before that, where any was
std::optional<std::int64_t> take_placed_peaks(analyzer::Prediction& prediction,
                                              const Placement& placed) {
  const std::int64_t largest =
      std::ranges::max(prediction.stages, {}, &analyzer::StagePrediction::peak_bytes).peak_bytes();
  bool any = false;
  for (std::size_t i = 0; i < prediction.stages.size(); ++i) {
    analyzer::StagePrediction& stage = prediction.stages[i];
    const std::int64_t bytes = placed.stage_bytes[i % placed.stage_bytes.size()];
    const std::int64_t peak = stage.peak_bytes();
    if (std::abs(double(bytes - peak)) <= std::max(0.01 * double(bytes), bytes_per_mib)) continue;
    any = true;
    for (std::int64_t* one : {&stage.peak_forward_bytes, &stage.peak_backward_bytes})
      *one = *one == peak ? bytes : std::min(*one, bytes);
  }
  return any ? std::optional(largest) : std::nullopt;
}

/// Prediction of a plan on its nodes. Without slow pairs these are alike, and a grid has the
/// formulas, which take long to build.
analyzer::Prediction prediction(const SearchInput& input, Grid& grid, const plan::Plan& plan) {
  return input.machine.profile(0).slow_pairs.empty()
             ? grid.analyzer().analyze(plan)
             : analyzer::analyze(plan, input.model, input.machine);
}

}  // namespace

RankedPlan ranked(const SearchInput& input, Grid& grid, const plan::Plan& plan,
                  const Placement& placed) {
  RankedPlan found{.plan = plan,
                   .prediction = prediction(input, grid, plan),
                   .simulated_s = std::nullopt,
                   .account = std::nullopt,
                   .placed = placed.groups,
                   .closed_form_bytes = std::nullopt};
  found.closed_form_bytes = take_placed_peaks(found.prediction, placed);
  if (placed.programs.empty()) return found;
  try {
    const schedule::Simulation simulation =
        schedule::simulate(placed.programs, plan, input.model, input.machine, input.deadline);
    found.simulated_s = simulation.iteration_s;
    found.account = schedule::account(plan, placed.programs, simulation);
  } catch (const OutOfTime&) {
  }
  return found;
}

}  // namespace brume::tuner
