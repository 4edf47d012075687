/// @file Whether a plan's compiled Programs fit the machine.
#pragma once

#include <optional>
#include <vector>

#include "base/deadline.hpp"
#include "hardware/machine.hpp"
#include "schedule/pack.hpp"
#include "schedule/program.hpp"
#include "search_input.hpp"
#include "tuner/result.hpp"

namespace brume::tuner {

/// Ranks' Programs and what their arenas take.
struct Placement {
  std::vector<schedule::Program> programs;  ///< all ranks, or one rank per stage, or none
  std::vector<GroupMemory> groups;          ///< [group]
  std::vector<std::int64_t> stage_bytes;    ///< [stage] largest arena of its ranks, among the first
                                            ///< stages, on whose ranks all others lie
  std::optional<int> misfit;  ///< a stage that does not fit; `programs` may then be empty
};

/// Seconds by which placing the first plan may exceed the search's limit: without it there is none.
inline constexpr double placing_s = 1.0;

/// Places the first and last rank of each stage (the others are like the larger one) over the first
/// microbatches, in which the peak is reached. Keeps no Programs. @throws OutOfTime
///
/// @param until_it_fits  placing ends there, though fewer bytes might do
Placement sample(const plan::Plan& whole, const model::Config& model,
                 const hardware::Cluster& cluster, int threads, const Deadline& deadline,
                 schedule::Packings* packings = nullptr, bool until_it_fits = false);

/// Coarse simulation of a plan, in a few hundredths of the time of placing it.
struct Coarse {
  std::optional<int> misfit;          ///< a stage that does not fit
  std::optional<double> iteration_s;  ///< simulated; none: too large, or it does not execute
};

/// Places two ranks of each stage, tightly only where they need it, and simulates as `place` would.
/// @throws OutOfTime
Coarse coarsely(const SearchInput& input, const plan::Plan& plan, int threads);

/// Places all ranks; a sample if they are many, with one Program per stage, or if the plan does not
/// execute. @throws OutOfTime
Placement place(const plan::Plan& plan, const model::Config& model,
                const hardware::Cluster& cluster, int threads, const Deadline& deadline);

}  // namespace brume::tuner
