/// @file Interference coefficients from tasks that were timed together.
#pragma once

#include <array>
#include <span>

#include "hardware/profile.hpp"

namespace brume::hardware {

/// Work on two or more resources, started together; the times of the absent ones are 0.
struct CoRun {
  std::array<double, num_resources> alone_s{};  ///< [s] each by itself
  double together_s = 0.0;                      ///< [s] until all were done
  std::array<double, num_resources> done_s{};   ///< [s] until each was done; 0: not known
};

/// Fits how much slower each resource runs beside others.
///
/// Minimises the squared relative errors of all known times t, for pairs and larger sets alike:
///
///   sum (predicted_t / t - 1)^2,   0 <= a[q][j] <= 20
///
/// by Levenberg-Marquardt steps, cut off at the bounds. Without `done_s`, only co-runs of different
/// proportions tell the two coefficients of a pair apart.
///
/// @return  0 for pairs without a co-run
/// @throws Error(bug)  when a co-run has fewer than two resources, or a time is not positive
Interference fit_interference(std::span<const CoRun> co_runs);

}  // namespace brume::hardware
