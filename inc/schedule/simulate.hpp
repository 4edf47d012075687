/// @file Event simulation of all ranks' Programs: when each task runs, how long the iteration
/// takes.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "base/deadline.hpp"
#include "hardware/machine.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "schedule/program.hpp"

namespace brume::schedule {

struct Simulation {
  double iteration_s = 0.0;              ///< last task of any rank
  std::vector<std::vector<Span>> spans;  ///< [program][task]
};

/// Slowdown of the tasks of a stage's channel against their price: [stage][channel].
using Pace = std::vector<std::array<double, num_channels>>;

/// Time of a task by itself [s], from the profile of its rank's group.
double task_s(const Task& task, const Program& program, const plan::Plan& plan,
              const model::Config& model, const hardware::Machine& machine);

/// Runs Programs against the clock: of all ranks in order, or of one rank of each stage, whose
/// partners without a Program are taken to be as fast as it is. A task starts when its channel, its
/// waits and, for transfers between ranks, its partners are ready; tasks of one rank slow each
/// other down as their group's interference model says.
///
/// @param pace  measured beside predicted; none: tasks take what they are priced
/// @throws Error(bug) when the Programs deadlock
/// @throws OutOfTime  when the deadline passes
Simulation simulate(std::span<const Program> programs, const plan::Plan& plan,
                    const model::Config& model, const hardware::Machine& machine,
                    const Deadline& deadline = {}, const Pace& pace = {});

}  // namespace brume::schedule
