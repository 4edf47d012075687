/// @file What follows for an iteration from simulations of its first microbatches.
#pragma once

#include <functional>
#include <vector>

#include "schedule/pack.hpp"
#include "schedule/simulate.hpp"

namespace brume::schedule {

/// Ranks of a plan with few enough microbatches to be simulated.
struct FirstPart {
  std::vector<Program> programs;
  Simulation simulation;
};

/// Values of a part of an iteration, extrapolated as steady_time says. Parts are looked at side by
/// side.
std::vector<double> extrapolated(
    const plan::Plan& plan, const model::Config& model, const hardware::Machine& machine,
    const Deadline& deadline, int threads, Packings& packings, bool one_a_stage,
    const std::function<std::vector<double>(const plan::Plan&, const FirstPart&)>& values);

}  // namespace brume::schedule
