/// @file Steps from plans to faster ones that differ from them in one knob, by simulation.
#pragma once

#include <vector>

#include "plan/plan.hpp"
#include "search_input.hpp"

namespace brume::tuner {

class WorkerPool;

/// Result of climbing.
struct Climb {
  plan::Plan plan;    ///< the fastest plan that was reached, or the first one that it began with
  int simulated = 0;  ///< plans
};

/// Bounds and predictions do not tell all plans apart, and orders other than 1F1B are searched in
/// parts only. The search therefore ends with steps to neighbours (plan::neighbours) that fit and
/// are simulated to be faster than all plans before, until there is none. Neighbours that are
/// predicted to be too slow, or not to fit, are not simulated.
///
/// If the deadline passes, the steps until then count.
///
/// @param starts   the fastest plan first; from the others only steps below its time count
/// @param refused  plans that were seen not to fit
Climb climb(const SearchInput& input, WorkerPool& workers, const std::vector<plan::Plan>& starts,
            const std::vector<plan::Plan>& refused);

}  // namespace brume::tuner
