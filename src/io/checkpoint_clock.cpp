#include "io/checkpoint_clock.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace brume::io {
namespace {

constexpr double usual_disk_bytes_per_s = 100e6;  ///< that a node writes to
constexpr double least_interval_s = 60.0;  ///< that is chosen, however little a checkpoint costs

}  // namespace

double usual_write_s(double bytes_of_node) { return bytes_of_node / usual_disk_bytes_per_s; }

double best_interval_s(double cost_s, double mtbf_s) { return std::sqrt(2.0 * cost_s * mtbf_s); }

double goodput(double interval_s, double cost_s, double mtbf_s, double restart_s) {
  return interval_s /
         (mtbf_s * std::exp(restart_s / mtbf_s) * std::expm1((interval_s + cost_s) / mtbf_s));
}

CheckpointClock::CheckpointClock(const CheckpointIntervals& intervals, double write_s,
                                 Clock::time_point now)
    : intervals_(intervals), cost_s_(write_s), write_s_(write_s), last_(now) {}

bool CheckpointClock::due(std::int64_t step, Clock::time_point now) const {
  const bool by_steps = intervals_.steps > 0 && step % intervals_.steps == 0;
  return by_steps || std::chrono::duration<double>(now - last_).count() >= interval_s();
}

void CheckpointClock::wrote(double cost_s, double write_s, Clock::time_point now) {
  cost_s_ = cost_s;
  write_s_ = std::max(write_s, cost_s);
  last_ = now;
}

double CheckpointClock::interval_s() const {
  if (intervals_.minutes > 0.0) return 60.0 * intervals_.minutes;
  if (intervals_.steps > 0) return std::numeric_limits<double>::infinity();
  // A write goes on beside training; the next one should not have to wait for it.
  return std::max(
      {least_interval_s, 2.0 * write_s_, best_interval_s(cost_s_, 3600.0 * intervals_.mtbf_hours)});
}

}  // namespace brume::io
