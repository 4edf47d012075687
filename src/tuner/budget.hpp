/// @file Time that a search has.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>

#include "base/deadline.hpp"

namespace brume::tuner {

/// Seconds since it was made.
class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// search.time_limit_s, of which a step of the search may take a part; over when somebody ends it.
class Budget {
 public:
  Budget(double limit_s, const std::atomic<bool>* stop)
      : limit_s_(limit_s), stop_(stop), deadline_(limit_s, stop) {}
  double limit_s() const { return limit_s_; }
  double seconds() const { return watch_.seconds(); }
  double left_s() const { return stopped() ? 0.0 : std::max(0.0, limit_s_ - seconds()); }
  bool stopped() const { return stop_ && *stop_; }
  void allow(double time_s) { deadline_ = Deadline(time_s, stop_); }
  /// Whatever happens.
  void grant(double time_s) { deadline_ = Deadline(time_s); }
  const Deadline& deadline() const { return deadline_; }

 private:
  double limit_s_;
  const std::atomic<bool>* stop_;
  Stopwatch watch_;
  Deadline deadline_;
};

}  // namespace brume::tuner
