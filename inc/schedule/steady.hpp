/// @file How much of an iteration is simulated, and its time from its first microbatches.
#pragma once

#include <vector>

#include "base/deadline.hpp"
#include "hardware/machine.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "schedule/pack.hpp"

namespace brume::schedule {

/// Ranks of which a whole iteration can be simulated in seconds: all, of larger plans the first one
/// of each stage, of the largest none.
std::vector<int> simulated_ranks(const plan::Plan& plan);

/// Microbatches after which all stages of a plan are busy, and later ones reuse the bytes of
/// earlier ones.
int steady_microbatches(const plan::Plan& plan);

/// The same plan with fewer microbatches, each as large as before.
plan::Plan of_microbatches(plan::Plan plan, int microbatches);

/// How long `simulate` says that an iteration of all ranks takes [s], found in a small part of the
/// time: of plans with many ranks one of each stage is simulated, and of n microbatches the first
/// m = `steady_microbatches` and m + m / 2, since from there on each microbatch adds as much. Where
/// those from m on add less than the slowest stage takes for them, that stage still uses up what
/// others are ahead, and m is doubled:
///
///     t(n) = t(m + m/2) + (n - m - m/2) (t(m + m/2) - t(m)) / (m/2)
///
/// @param packings     what is known from other Programs of the plan
/// @param one_a_stage  one rank of each stage is simulated even of plans with few ranks
/// @throws OutOfTime when the deadline passes
double steady_time(const plan::Plan& plan, const model::Config& model,
                   const hardware::Machine& machine, const Deadline& deadline = {}, int threads = 1,
                   Packings* packings = nullptr, bool one_a_stage = false);

}  // namespace brume::schedule
