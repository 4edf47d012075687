#include "screen.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "base/log.hpp"
#include "base/statistics.hpp"
#include "base/text.hpp"
#include "device/device.hpp"
#include "schedule/program.hpp"

namespace brume::app {
namespace {

/// The last column is the resident set, which has nothing of a device's memory.
std::string header() {
  return fmt::format(
      "  step      loss  grad_norm         lr   tokens/s  iteration  peak {} per rank",
      device::on_device() ? "host memory" : "memory");
}

std::int64_t largest(const std::vector<std::int64_t>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

}  // namespace

bool on_terminal() {
  if (isatty(STDERR_FILENO) == 1) return true;
  std::error_code unreadable;
  const auto target = std::filesystem::read_symlink(
      fmt::format("/proc/{}/fd/{}", getppid(), STDERR_FILENO), unreadable);
  return !unreadable &&
         (target.string().starts_with("/dev/pts/") || target.string().starts_with("/dev/tty"));
}

Screen::Screen(std::int64_t first_step, std::int64_t steps, int log_every, double predicted_s)
    : first_step_(first_step),
      steps_(steps),
      log_every_(log_every),
      predicted_s_(predicted_s),
      terminal_(on_terminal()) {
  log::info("{}", header());
}

void Screen::show(const io::Row& row) {
  const engine::StepMetrics& m = row.metrics;
  measured_s_.push_back(m.iteration_s);
  for (std::size_t c = 0; c < sum_.busy_s.size(); ++c) {
    sum_.busy_s[c] += m.busy_s[c];
    sum_.hidden_s[c] += m.hidden_s[c];
  }
  scaled_down_ += m.scaled_down;
  skipped_ += m.skipped && !m.scaled_down;
  last_ = row;
  clear_progress();
  if (m.skipped || m.step == first_step_ || (m.step + 1) % log_every_ == 0 || m.step + 1 == steps_)
    log::info("{:>6}  {:>8.4f}  {:>9.4f}  {:>9.3e}  {:>9.0f}  {:>9}  {:>10}{}", m.step + 1, m.loss,
              m.grad_norm, m.lr, row.tokens_per_s, format_seconds(m.iteration_s),
              format_bytes(double(largest(row.peak_bytes))),
              m.scaled_down ? "  gradients too large for fp16: scaled down, update skipped"
              : m.skipped   ? "  not finite: update skipped"
                            : "");
  if (terminal_) progress(row);
}

void Screen::show_evaluation(std::int64_t step, double loss) {
  clear_progress();
  log::info("{:>6}  {:>8.4f}  validation loss", step, loss);
}

void Screen::progress(const io::Row& row) {
  constexpr int width = 40;
  const double share = double(row.metrics.step + 1 - first_step_) /
                       double(std::max<std::int64_t>(1, steps_ - first_step_));
  const int filled = int(share * width);
  fmt::print(stderr, "\r[{:=<{}}>{: <{}}] {}/{}  {} left ", "", filled, "", width - filled,
             row.metrics.step + 1, steps_,
             format_seconds(double(steps_ - row.metrics.step - 1) * row.metrics.iteration_s));
  std::fflush(stderr);
  progress_shown_ = true;
}

void Screen::clear_progress() {
  if (progress_shown_) fmt::print(stderr, "\r\033[K");
  progress_shown_ = false;
}

void Screen::close(const io::RunDescription& description) {
  clear_progress();
  if (measured_s_.empty()) return;
  const double typical_s = median(measured_s_);
  log::info("");
  if (skipped_ > 0)
    log::info("{} of {} steps had no update: loss or gradient was not finite", skipped_,
              measured_s_.size());
  if (scaled_down_ > 0)
    log::info("{} of {} steps had no update: scaled gradients were too large for fp16",
              scaled_down_, measured_s_.size());
  log::info("iteration time: predicted {}, measured {} (median of {}), ratio {:.2f}",
            format_seconds(predicted_s_), format_seconds(typical_s), measured_s_.size(),
            typical_s / predicted_s_);

  Table memory({"rank", "device arena", "host pool", "checkpoint copy", "resident set"});
  for (std::size_t rank = 0; rank < description.predicted_bytes.size(); ++rank)
    memory.add(
        {std::to_string(rank), format_bytes(double(description.predicted_bytes[rank])),
         format_bytes(double(description.host_bytes[rank])),
         format_bytes(double(description.copy_bytes[rank])),
         rank < last_.peak_bytes.size() ? format_bytes(double(last_.peak_bytes[rank])) : "-"});
  log::info(
      "memory: reserved = allocated = predicted; beside it what a checkpoint takes and what the "
      "process holds in all");
  log::info("{}", memory.text());

  Table channels({"channel of rank 0", "busy per iteration", "hidden behind computation"});
  for (int c = 0; c < schedule::num_channels; ++c) {
    const auto i = std::size_t(c);
    if (sum_.busy_s[i] == 0.0) continue;
    const bool computes = schedule::Channel(c) == schedule::Channel::compute;
    channels.add(
        {schedule::name(schedule::Channel(c)),
         format_seconds(sum_.busy_s[i] / double(measured_s_.size())),
         computes ? "-" : fmt::format("{:.0f} %", 100.0 * sum_.hidden_s[i] / sum_.busy_s[i])});
  }
  log::info("{}", channels.text());
}

}  // namespace brume::app
