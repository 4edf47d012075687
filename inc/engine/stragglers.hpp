/// @file Detection of ranks that are slower than their peers.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "comm/communicator.hpp"
#include "plan/plan.hpp"
#include "schedule/program.hpp"

namespace brume::engine {

/// A rank that was slower than its peers for many steps.
struct Straggler {
  int rank;
  schedule::Channel channel;
  double typical_s;  ///< usual work of the channel per step
  double peers_s;    ///< the same of its peers
};

/// Compares how long the channels of a stage's ranks work in a step, those channels that wait for
/// no other rank: compute, copies, disk. In collectives the fast ranks wait for the slow one.
class Stragglers {
 public:
  /// Ranks are compared by the last so many blocks of steps, each of one step or, if that takes
  /// less, as many as fill a time. Fewer may show no more than what else a node had to do.
  static constexpr std::size_t window = 20;
  static constexpr double block_s = 0.5;
  static constexpr std::size_t every = 5;  ///< blocks between comparisons
  static constexpr double excess = 1.1;    ///< factor of the peers' time

  using BusyTimes = std::array<double, schedule::num_channels>;  ///< [s]

  explicit Stragglers(const plan::Plan& plan);

  /// Notes this rank's step. Once there are enough it compares now and then; collective.
  ///
  /// @param iteration_s  the same on all ranks
  /// @return             ranks, each once in the object's life, of which three blocks of four took
  /// longer than
  ///          `excess` times what is typical of the stage's others; the same on all ranks
  std::vector<Straggler> add(const BusyTimes& busy_s, double iteration_s,
                             comm::Communicator& world);

 private:
  std::vector<int> stage_of_;      ///< [rank]
  std::vector<BusyTimes> blocks_;  ///< blocks of the next comparison so far: means of their steps
  BusyTimes sum_{};                ///< sum over the steps of the next block
  int steps_ = 0;                  ///< number of these steps
  double time_s_ = 0.0;
  std::vector<std::array<bool, schedule::num_channels>> named_;  ///< [rank]
};

}  // namespace brume::engine
