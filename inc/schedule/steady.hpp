/// @file The simulated time of an iteration from its first microbatches and one rank of each stage.
#pragma once

#include "base/deadline.hpp"
#include "hardware/machine.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "schedule/pack.hpp"

namespace brume::schedule {

/// Microbatches after which all stages of a plan are busy, and later ones reuse the bytes of
/// earlier ones.
int steady_microbatches(const plan::Plan& plan);

/// The same plan with fewer microbatches, each as large as before.
plan::Plan of_microbatches(plan::Plan plan, int microbatches);

/// How long `simulate` says that an iteration of all ranks takes [s], found in a small part of the
/// time: of plans with many ranks one of each stage is simulated, and of n microbatches the first
/// m = `steady_microbatches` and m + m / 2, since from there on each microbatch adds as much:
///
///     t(n) = t(m + m/2) + (n - m - m/2) (t(m + m/2) - t(m)) / (m/2)
///
/// @param packings  what is known from other Programs of the plan
/// @throws OutOfTime when the deadline passes
double steady_time(const plan::Plan& plan, const model::Config& model,
                   const hardware::Machine& machine, const Deadline& deadline = {}, int threads = 1,
                   Packings* packings = nullptr);

}  // namespace brume::schedule
