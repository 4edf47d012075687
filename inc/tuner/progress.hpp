/// @file Progress of a search, for other threads.
#pragma once

#include <atomic>

#include "base/numbers.hpp"

namespace brume::tuner {

/// Values that other threads may read during a search.
struct Progress {
  std::atomic<double> best_s = infinity;  ///< fastest simulated plan
  std::atomic<double> bound_s = 0.0;      ///< no plan is faster by the model
};

}  // namespace brume::tuner
