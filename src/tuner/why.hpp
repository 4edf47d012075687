/// @file Why this plan, and what would fit where none does.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fastest_placed.hpp"
#include "placement.hpp"
#include "search.hpp"
#include "tuner/result.hpp"

namespace brume::tuner {

struct Reasons {
  std::vector<Ablation> ablations;   ///< cost of the best plan without each knob it uses
  std::vector<std::string> untried;  ///< knobs that there was no time for
  std::optional<plan::Plan> faster;  ///< one of these plans that the best one should have been
};

/// @param budget  whose deadline the input's is
/// @param bounds  of the search that found the best plan
/// @param known   plans of that search
Reasons reasons(const SearchInput& input, WorkerPool& workers, Budget& budget,
                const RankedPlan& best, const Bounds& bounds, std::vector<Placed> known);

/// The fastest plan of an unlimited machine, where it is faster by more than 3 % and misses this
/// one by no more memory than some device has. @throws OutOfTime
///
/// @param best_s  seconds of the best plan that fits
std::string nearest_infeasible(const SearchInput& input, WorkerPool& workers, double best_s);

/// Fewer nodes of an only group, and the next larger batch of which more data-parallel degrees are
/// divisors, where they are faster by more than 3 %. @throws OutOfTime
///
/// @param best_s  seconds of the best plan
std::vector<Faster> faster_beside(const SearchInput& input, WorkerPool& workers, double best_s);

/// Reason why a search ended early, in words.
std::string ended_by(bool interrupted, double limit_s);

/// The plan that needs least memory, which formulas may have counted as more than it takes.
/// @throws Infeasible where it does not fit, saying by how much, and what would
std::pair<plan::Plan, Placement> smallest_that_fits(const SearchInput& input, WorkerPool& workers);

/// @throws Infeasible saying that no plan is known by the end of the time, and what is
[[noreturn]] void nothing_found(const SearchInput& input, const Searcher& searcher, int refused);

}  // namespace brume::tuner
