/// @file The fastest plan of a search, with less effort than a whole one.
#pragma once

#include <algorithm>
#include <optional>

#include "search.hpp"

namespace brume::tuner {

/// A plan that fits.
struct Placed {
  plan::Plan plan;
  double iteration_s = infinity;  ///< simulated coarsely
};

/// How much faster another plan has to be, to be looked for: by that much of the time, or of what
/// it is above the best plan's.
struct Doubt {
  double gap, part = 0.0;
  double best_s = 0.0;

  /// Time below which a plan is of interest, if the fastest known plan takes `known_s`.
  double worth_knowing_s(double known_s) const {
    if (known_s == infinity) return infinity;
    return known_s - std::max(gap * known_s, part * (known_s - best_s));
  }
};

/// Plans of other orders, or of that of one plan only. @throws OutOfTime
void look_at_other_orders(const SearchInput& input, WorkerPool& workers, const Doubt& doubt,
                          const plan::Plan* like, Placed& fastest);

/// The plan than which none is faster by more than a doubt by the model's bound or prediction.
///
/// @param bounds   of a search over these plans and others
/// @param fastest  of these plans known so far
/// @param like     a plan whose order is looked at, too, where it is another one than 1F1B
/// @throws OutOfTime when none is known by then
std::optional<Placed> fastest_placed(const SearchInput& input, WorkerPool& workers,
                                     const Doubt& doubt, const Bounds& bounds = {},
                                     Placed fastest = {}, const plan::Plan* like = nullptr);

}  // namespace brume::tuner
