/// @file How long something has been silent, as one sees it who looks from time to time.
#pragma once

#include <algorithm>
#include <chrono>

namespace brume::comm {

/// Adds up the time between looks. A look that comes much later than it should finds that the
/// process itself stood still, suspended or without a processor: then nobody could be heard, and
/// only the usual time counts.
class Silence {
 public:
  using Clock = std::chrono::steady_clock;

  /// @param look_s  [s] how often look() is called
  explicit Silence(double look_s) : most_s_(2.0 * look_s) {}

  /// @param heard  whether there was a sign of life since the last look
  /// @return       [s] of silence so far
  double look(bool heard) {
    const Clock::time_point now = Clock::now();
    const double passed_s = std::chrono::duration<double>(now - last_look_).count();
    last_look_ = now;
    silence_s_ = heard ? 0.0 : silence_s_ + std::min(passed_s, most_s_);
    return silence_s_;
  }

  /// Another one has heard a sign of life, so long ago [s].
  void hear(double ago_s) { silence_s_ = std::min(silence_s_, ago_s); }

  double silence_s() const { return silence_s_; }  ///< [s] at the last look

 private:
  double most_s_;
  double silence_s_ = 0.0;
  Clock::time_point last_look_ = Clock::now();
};

}  // namespace brume::comm
