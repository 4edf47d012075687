/// @file The moment at which long work has to end.
#pragma once

#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>

#include "base/error.hpp"

namespace brume {

/// Work was given up because its time was over.
class OutOfTime : public Error {
 public:
  OutOfTime() : Error(Failure::infeasible, "the time for this is over") {}
};

/// Long work asks it in its inner loops whether it may go on.
class Deadline {
 public:
  Deadline() = default;  ///< never
  /// @param stop  it has passed as soon as this is true
  explicit Deadline(double left_s, const std::atomic<bool>* stop = nullptr) : stop_(stop) {
    set(left_s);
  }

  /// Ends `left_s` seconds from now.
  void set(double left_s) {
    constexpr double longest_s = 1e9;  // far from where clocks overflow
    end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                              std::chrono::duration<double>(std::clamp(left_s, 0.0, longest_s)));
  }

  /// The time that is left [s]; 0 when it has passed.
  double left_s() const {
    if (stopped()) return 0.0;
    if (end_ == Clock::time_point::max()) return std::numeric_limits<double>::infinity();
    return std::max(0.0, std::chrono::duration<double>(end_ - Clock::now()).count());
  }

  /// @throws OutOfTime when it has passed
  void check() const {
    if (stopped() || Clock::now() >= end_) throw OutOfTime();
  }

  /// Whether somebody ended it early.
  bool stopped() const { return stop_ && stop_->load(std::memory_order_relaxed); }

 private:
  /// The system's monotonic clock to its last tick, at most 10 ms ago: read in a sixth of the time.
  struct Clock {
    using duration = std::chrono::nanoseconds;
    using time_point = std::chrono::time_point<Clock, duration>;
    static time_point now() {
      struct timespec since = {};
      ::clock_gettime(CLOCK_MONOTONIC_COARSE, &since);
      return time_point(std::chrono::seconds(since.tv_sec) + duration(since.tv_nsec));
    }
  };
  Clock::time_point end_ = Clock::time_point::max();
  const std::atomic<bool>* stop_ = nullptr;
};

}  // namespace brume
