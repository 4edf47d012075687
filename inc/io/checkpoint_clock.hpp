/// @file When checkpoints are written.
#pragma once

#include <chrono>
#include <cstdint>

namespace brume::io {

/// The deck's checkpoint interval.
struct CheckpointIntervals {
  int steps = 0;             ///< steps between checkpoints; 0: none in particular
  double minutes = 0.0;      ///< time between checkpoints; 0: not fixed
  double mtbf_hours = 24.0;  ///< mean time between failures of the job, where neither is given
};

/// The time between checkpoints that loses least to writing them and to failures, which throw a
/// training back to the last one and come at random.
///
///   sqrt(2 cost mtbf)
///
/// @param cost_s  that training is held up by one checkpoint
/// @source        Young, "A first order approximation to the optimum checkpoint interval" (1974)
double best_interval_s(double cost_s, double mtbf_s);

/// The share of a training's time in which it makes steps that are not lost.
///
///   tau / (M e^(R / M) (e^((tau + C) / M) - 1))
///
/// @param interval_s  tau, between checkpoints
/// @param cost_s      C, that training is held up by one checkpoint
/// @param mtbf_s      M, mean time between failures, which come at random, also during restarts
/// @param restart_s   R, from a failure to the next step
/// @source            Daly, "A higher order estimate of the optimum checkpoint interval" (2006)
double goodput(double interval_s, double cost_s, double mtbf_s, double restart_s);

/// Time to write a checkpoint, expected before one has been written.
double usual_write_s(double bytes_of_node);

/// Says when a checkpoint is due: after given steps, after a given time or, where neither is given,
/// after best_interval_s() of what a checkpoint was seen to cost.
class CheckpointClock {
 public:
  using Clock = std::chrono::steady_clock;

  /// @param write_s  that a checkpoint is expected to take
  CheckpointClock(const CheckpointIntervals& intervals, double write_s, Clock::time_point now);

  /// @param step  so many are done
  bool due(std::int64_t step, Clock::time_point now) const;

  /// @param cost_s   that the checkpoint held training up, until `now`
  /// @param write_s  that the longest one took from its start to its last byte on the disk
  void wrote(double cost_s, double write_s, Clock::time_point now);

  /// The time between two checkpoints; infinity where only steps count.
  double interval_s() const;

 private:
  CheckpointIntervals intervals_;
  double cost_s_, write_s_;
  Clock::time_point last_;
};

}  // namespace brume::io
