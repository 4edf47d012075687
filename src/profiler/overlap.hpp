/// @file Measures what work on several channels costs: hand-over, and slowing each other down.
#pragma once

#include "bench.hpp"
#include "chain.hpp"
#include "hardware/profile.hpp"

namespace brume::profiler {

/// Seconds of one empty task that waits for another channel; 0 when it could not be measured.
double measure_hand_over(Bench& bench);

/// What the resources do while they are timed together.
struct Loads {
  Product product;
  std::int64_t reduce_bytes;  ///< all-reduce over `group`
  std::int64_t copy_bytes;    ///< each way
  comm::Communicator* group;  ///< null: nothing to communicate with
};

/// Coefficients a[q][j], row by row as hardware::Profile keeps them, from co-runs of all sets, each
/// the median of three; all 0 when they could not be measured.
std::vector<double> measure_interference(Bench& bench, const Loads& loads);

}  // namespace brume::profiler
