/// @file How far long work has come, for a person who waits.
#pragma once

#include <chrono>
#include <string>

namespace brume {

/// Says it in one line of a terminal, which goes when the work is done, else in the log every 30 s.
/// Work of less than half a second says nothing. One thread only.
class Progress {
 public:
  /// @param what   "reading the weights"
  /// @param total  amount of work, in units of the caller's
  /// @param shown  whether this process is the one that speaks
  Progress(std::string what, double total, bool shown = true);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void add(double amount);

 private:
  using Clock = std::chrono::steady_clock;

  std::string what_;
  double total_, done_ = 0.0;
  bool shown_, terminal_, line_ = false;
  Clock::time_point begin_ = Clock::now(), next_;
};

}  // namespace brume
