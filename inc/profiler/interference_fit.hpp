/// @file Interference coefficients from tasks that were timed together.
#pragma once

#include <array>
#include <span>

#include "hardware/profile.hpp"

namespace brume::profiler {

/// Work on two or more resources, started together; the times of the absent ones are 0.
struct CoRun {
  std::array<double, hardware::num_resources> alone_s{};  ///< [s] each by itself
  std::array<double, hardware::num_resources> done_s{};   ///< [s] from the start until it was done
};

/// Fits how much slower each resource runs beside others.
///
/// Pairs give a first model in closed form.
///
/// Resource q, done first, shows its slowdown directly, and j's follows from what j had left:
///
///   1 + a[q][j] = done_q / alone_q,   1 + a[j][q] = done_q / (alone_j - (done_j - done_q))
///
/// Over several co-runs of a pair with slowdowns s_k, the x that minimises sum_k (x / s_k - 1)^2:
///
///   1 + a = sum_k s_k^-1 / sum_k s_k^-2,   a >= 0
///
/// With co-runs of more than two, coefficients then move one at a time to lower the relative errors
/// of the time until all were done, over all co-runs.
///
/// @return  0 for pairs without a co-run
/// @throws Error(bug)  when a co-run has fewer than two resources with positive times
hardware::Interference fit_interference(std::span<const CoRun> co_runs);

}  // namespace brume::profiler
