/// @file Why this plan, and what would fit where none does.
#pragma once

#include <string>
#include <vector>

#include "search.hpp"

namespace brume::tuner {

/// What the best plan would cost without each knob it uses.
std::vector<Ablation> ablations(const Question& question, Grid& grid, const Candidate& best,
                                const Stopwatch& watch);

/// The fastest plan of an unlimited machine, when it does not fit this one.
std::string nearest_infeasible(const Question& question, Grid& grid, const Stopwatch& watch);

/// @throws Infeasible saying what misses by least, and what would fit
[[noreturn]] void nothing_fits(const Question& question, Grid& grid, const Stopwatch& watch);

}  // namespace brume::tuner
