/// @file Why this plan, and what would fit where none does.
#pragma once

#include <string>
#include <vector>

#include "search.hpp"

namespace brume::tuner {

/// What the best plan would cost without each knob it uses; those that there was no time for are
/// in `untried`.
std::vector<Ablation> ablations(const Question& question, const Candidate& best,
                                std::vector<std::string>& untried);

/// The fastest plan of an unlimited machine, when it does not fit this one. @throws OutOfTime
std::string nearest_infeasible(const Question& question, Grid& grid);

/// @throws Infeasible saying what misses by least, and what would fit
[[noreturn]] void nothing_fits(const Question& question, Grid& grid);

/// @throws Infeasible saying that no plan is known by the end of the time, and what is
[[noreturn]] void nothing_found(const Question& question, const Searcher& searcher, int struck);

}  // namespace brume::tuner
