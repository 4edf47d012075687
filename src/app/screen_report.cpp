/// @file The closing report of a job: step time, memory, channels.
#include <fmt/format.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/statistics.hpp"
#include "base/text.hpp"
#include "screen.hpp"

namespace brume::app {

void Screen::close(const io::RunDescription& description) {
  clear_progress();
  if (tries_ == 0) return;
  report("");
  for (const auto& [outcome, why] :
       {std::pair(Outcome::nonfinite, "loss or gradient was not finite"),
        std::pair(Outcome::scaled_down, "scaled gradients were too large for fp16"),
        std::pair(Outcome::nothing_learned, "no token of their batches was to be learned")})
    if (const std::int64_t found = count(outcome); found > 0)
      report(fmt::format("{} of {} steps had no update: {}", found, steps_.size(), why));
  report_time();
  report_memory(description);
  report_channels();
}

void Screen::report_time() const {
  std::vector<double> measured_s;
  for (const Step& step : steps_)
    if (!std::isnan(step.iteration_s)) measured_s.push_back(step.iteration_s);
  if (measured_s.empty()) return;
  const double typical_s = median(measured_s), ratio = typical_s / expected_.iteration_s;
  report(fmt::format("step time: predicted {}, measured {} (median of {}), ratio {:.2f}",
                     format_seconds(expected_.iteration_s), format_seconds(typical_s),
                     measured_s.size(), ratio));
  report(fmt::format("data: per step waits {} for its batch, {:.1f} % of its time",
                     format_seconds(sum_.data_s / double(tries_)),
                     100.0 * sum_.data_s / sum_.iteration_s));
  if (ratio > io::fast_ratio && ratio < io::slow_ratio) return;
  const bool slow = ratio >= io::slow_ratio;
  const char* const which = slow ? "slower" : "faster";
  if (slow && expected_.ranks_per_node > expected_.cores)
    report(fmt::format("slower: {} share {}", counted(expected_.ranks_per_node, "rank"),
                       counted(expected_.cores, "core")));
  std::size_t channel = 0;
  double most_s = 0.0, busy_s = 0.0;
  for (std::size_t c = 0; c < sum_.busy_s.size(); ++c) {
    const double mean_s = sum_.busy_s[c] / double(tries_);
    const double off_s = (slow ? 1.0 : -1.0) * (mean_s - expected_.busy_s[c]);
    if (off_s <= most_s) continue;
    channel = c;
    busy_s = mean_s;
    most_s = off_s;
  }
  if (slow && sum_.data_s / double(tries_) > most_s)
    report(fmt::format("slower: per step waits {} for its batch, predicted without",
                       format_seconds(sum_.data_s / double(tries_))));
  else if (most_s > 0.0)
    report(fmt::format("{}: {} of rank 0 is busy for {} per step, predicted {}", which,
                       schedule::name(schedule::Channel(int(channel))), format_seconds(busy_s),
                       format_seconds(expected_.busy_s[channel])));
  report(fmt::format("{}: predicted by the profile {}", which, expected_.profile));
}

void Screen::report_memory(const io::RunDescription& description) const {
  Table memory({"rank", "device arena", "host pool", "checkpoint copy", "resident set"});
  for (std::size_t rank = 0; rank < description.predicted_bytes.size(); ++rank)
    memory.add(
        {std::to_string(rank), format_bytes(double(description.predicted_bytes[rank])),
         format_bytes(double(description.host_bytes[rank])),
         format_bytes(double(description.copy_bytes[rank])),
         rank < last_.peak_bytes.size() ? format_bytes(double(last_.peak_bytes[rank])) : "-"});
  report(
      "memory per rank: planned (reserved as predicted), checkpoint copy, and resident set of the "
      "process");
  report(memory.text(columns_));
}

void Screen::report_channels() const {
  Table channels({"channel of rank 0", "busy per step", "hidden behind computation"});
  for (int c = 0; c < schedule::num_channels; ++c) {
    const auto i = std::size_t(c);
    if (sum_.busy_s[i] == 0.0) continue;
    const bool computes = schedule::Channel(c) == schedule::Channel::compute;
    channels.add(
        {schedule::name(schedule::Channel(c)), format_seconds(sum_.busy_s[i] / double(tries_)),
         computes ? "-" : fmt::format("{:.0f} %", 100.0 * sum_.hidden_s[i] / sum_.busy_s[i])});
  }
  report(channels.text(columns_));
}

}  // namespace brume::app
