/// @file The table of steps, and the progress line, of a running job.
#include "screen.hpp"

#include <fmt/format.h>
#include <stdio_ext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

#include "base/files.hpp"
#include "base/log.hpp"
#include "base/terminal.hpp"
#include "base/text.hpp"
#include "schedule/program.hpp"

namespace brume::app {
namespace {

/// A column of the table of steps.
struct Column {
  const char* name;
  std::size_t width;
  int rank;  ///< those of the highest rank are left out first where the terminal is narrow
  enum class Of { all, experts, pairs } of = Of::all;
};
constexpr std::array step_columns{
    Column{"step", 7, 0},
    Column{"loss", 8, 0},
    Column{"accuracy", 8, 0, Column::Of::pairs},
    Column{"margin", 8, 0, Column::Of::pairs},
    Column{"grad_norm", 9, 0},
    Column{"lr", 9, 2},
    Column{"tokens/s", 8, 0},
    Column{"a device", 8, 6},
    Column{"TFLOP/s", 7, 4},
    Column{"MFU", 6, 3},
    Column{"step time", 9, 0},
    Column{"load", 5, 1, Column::Of::experts},
    Column{"left", 8, 1},
    Column{"memory", 11, 5},
};
using StepCells = std::array<std::string, step_columns.size()>;

/// The cells for which there is room, in order.
std::string step_line(const StepCells& cells, std::size_t room, const ScreenSettings& settings) {
  int ranks = 0;
  for (const Column& column : step_columns) ranks = std::max(ranks, column.rank);
  const auto shown = [&](const Column& column) {
    const bool has = column.of == Column::Of::experts ? settings.experts
                     : column.of == Column::Of::pairs ? settings.pairs
                                                      : true;
    return column.rank <= ranks && has;
  };
  const auto width = [&] {
    std::size_t sum = 0;
    for (const Column& column : step_columns)
      if (shown(column)) sum += (sum > 0 ? 2 : 0) + column.width;
    return sum;
  };
  while (ranks > 0 && width() > room) --ranks;
  std::string line;
  for (std::size_t c = 0; c < cells.size(); ++c)
    if (shown(step_columns[c]))
      line += fmt::format("{}{:>{}}", line.empty() ? "" : "  ", cells[c], step_columns[c].width);
  return line;
}

std::string step_header(std::size_t room, const ScreenSettings& settings) {
  StepCells names;
  for (std::size_t c = 0; c < names.size(); ++c) names[c] = step_columns[c].name;
  return step_line(names, room, settings);
}

/// "2:05:09": hours, minutes, seconds; of hundreds of hours "12d04h".
std::string format_left(double time_s) {
  const auto seconds = std::int64_t(std::ceil(time_s));
  const std::int64_t hours = seconds / 3600;
  if (hours >= 100) return fmt::format("{}d{:02}h", hours / 24, hours % 24);
  return fmt::format("{}:{:02}:{:02}", hours, seconds / 60 % 60, seconds % 60);
}

/// Four decimals, or as many digits as there is room for.
std::string format_value(double value, std::size_t width) {
  std::string text = fmt::format("{:.4f}", value);
  for (int digits = 4; text.size() > width && digits > 0; --digits)
    text = fmt::format("{:.{}g}", value, digits);
  return text;
}

/// Three digits in seven columns.
std::string format_speed(double tflops) {
  const std::string text = fmt::format("{:.3g}", tflops);
  return text.size() <= 7 ? text : fmt::format("{:.2g}", tflops);
}

std::string format_share(double share) {
  if (!(share > 0.0)) return "-";
  return share < 0.9995 ? fmt::format("{:.1f} %", 100.0 * share)
                        : fmt::format("{:.0f} %", 100.0 * share);
}

std::int64_t largest(const std::vector<std::int64_t>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

}  // namespace

Screen::Screen(const ScreenSettings& settings, const Expectation& expected,
               const io::Yardstick& yardstick)
    : settings_(settings),
      expected_(expected),
      yardstick_(yardstick),
      terminal_(terminal::watched(STDERR_FILENO)),
      progress_to_(terminal::watched(STDOUT_FILENO) ? stdout : stderr),
      columns_(terminal::columns(STDOUT_FILENO)) {
  report(settings_.head);
  if (settings_.first_step >= settings_.last_step)
    report(fmt::format("{} of {} steps are done: raise training.steps, or --steps, to go on",
                       settings_.first_step, settings_.last_step));
  else if (!settings_.json)
    say(step_header(columns_, settings_));
}

/// A line of the results, at once, because standard output may be a pipe.
void Screen::say(const std::string& line) const { put(stdout, line + "\n"); }

/// What cannot be shown is no reason to end a training: its numbers are in files too.
void Screen::put(std::FILE* out, const std::string& text) const {
  if (std::fwrite(text.data(), 1, text.size(), out) == text.size() && std::fflush(out) == 0) return;
  const std::string why = last_error();
  __fpurge(out);
  std::clearerr(out);
  if (!std::exchange(warned_, true))
    log::warn("the steps cannot be shown: {}. metrics.jsonl has them", why);
}

void Screen::report(const std::string& line) const {
  if (settings_.json)
    log::info("{}", line);
  else
    say(wrapped(line, columns_));
}

void Screen::show(const io::Row& row) {
  const engine::StepMetrics& m = row.metrics;
  if (tries_++ == 0) first_done_ = Clock::now();
  steps_.push_back({m.left_out ? std::nan("") : m.iteration_s, m.scaled_down ? Outcome::scaled_down
                                                               : m.nothing_learned
                                                                   ? Outcome::nothing_learned
                                                               : m.skipped ? Outcome::nonfinite
                                                                           : Outcome::updated});
  sum_.iteration_s += m.iteration_s;
  sum_.data_s += m.data_s;
  for (std::size_t c = 0; c < sum_.busy_s.size(); ++c) {
    sum_.busy_s[c] += m.busy_s[c];
    sum_.hidden_s[c] += m.hidden_s[c];
  }
  last_ = row;
  clear_progress();
  const std::int64_t done = m.step + 1;
  const bool stands_out = m.skipped && (!m.nothing_learned || count(Outcome::nothing_learned) == 1);
  if (stands_out || m.step == settings_.first_step || done % settings_.log_every == 0 ||
      done == settings_.last_step) {
    if (settings_.json) {
      std::string line = io::json_line(row, yardstick_);
      line.pop_back();
      say(line);
    } else {
      const double mfu = yardstick_.mfu(row.tokens_per_s);
      const double flops_per_s = yardstick_.flops_per_s(row.tokens_per_s) / yardstick_.devices;
      say(step_line({std::to_string(done), format_value(m.loss, 8),
                     m.accuracy < 0.0 ? "-" : fmt::format("{:.1f} %", 100.0 * m.accuracy),
                     format_value(m.margin, 8), format_value(m.grad_norm, 9),
                     fmt::format("{:.3e}", m.lr), fmt::format("{:.0f}", row.tokens_per_s),
                     fmt::format("{:.0f}", row.tokens_per_s / yardstick_.devices),
                     format_speed(flops_per_s / 1e12), format_share(mfu),
                     format_seconds(m.iteration_s), fmt::format("{:.2f}", m.load_factor),
                     format_left(left_s(row)), format_bytes(double(largest(row.peak_bytes)))},
                    columns_, settings_));
      if (m.skipped)
        say(m.scaled_down ? "        gradients too large for fp16: scaled down, update skipped"
            : m.nothing_learned ? "        no token of the batch is to be learned: update skipped"
            : m.left_out        ? "        not finite before: batch left out"
                                : "        not finite: update skipped");
    }
  }
  if (terminal_) progress(row);
}

void Screen::show(const io::EvaluationRow& row) {
  clear_progress();
  if (settings_.json) {
    std::string line = io::json_line(row);
    line.pop_back();
    say(line);
  } else {
    say(row.accuracy < 0.0
            ? fmt::format("{:>7}  {:>8.4f}  validation loss", row.step, row.loss)
            : fmt::format(
                  "{:>7}  {:>8.4f}  {:>6.1f} %  {:>8.4f}  validation: loss, accuracy, margin",
                  row.step, row.loss, 100.0 * row.accuracy, row.margin));
  }
}

void Screen::show(const io::SampleRow& row) {
  clear_progress();
  if (settings_.json) {
    std::string line = io::json_line(row);
    line.pop_back();
    return say(line);
  }
  constexpr std::size_t least = 20;  // columns
  const std::string prompt = io::quoted(row.prompt, std::max(least, columns_ / 3));
  const std::string begin = fmt::format("{:>7}  sample {}: {} ", row.step, row.index + 1, prompt);
  say(begin +
      (row.finish == "error"
           ? "the logits are not finite"
           : io::quoted(row.text, std::max(least, columns_ - std::min(columns_, begin.size())))));
}

void Screen::rewind(std::int64_t steps) {
  settings_.first_step = std::min(settings_.first_step, steps);
  steps_.resize(std::size_t(steps - settings_.first_step));
}

std::int64_t Screen::count(Outcome outcome) const {
  return std::ranges::count(steps_, outcome, &Step::outcome);
}

/// By what the steps after the first took so far, with evaluations and checkpoints between them.
double Screen::left_s(const io::Row& row) const {
  const double done = double(tries_) - 1.0;
  const double each_s =
      done > 0.0 ? std::chrono::duration<double>(Clock::now() - first_done_).count() / done
                 : row.metrics.iteration_s;
  return each_s * double(settings_.last_step - row.metrics.step - 1);
}

void Screen::progress(const io::Row& row) {
  constexpr int width = 40;
  const double share =
      double(row.metrics.step + 1 - settings_.first_step) /
      double(std::max<std::int64_t>(1, settings_.last_step - settings_.first_step));
  const int filled = int(share * width);
  put(progress_to_,
      fmt::format("\r[{:=<{}}>{: <{}}] {}/{}  {} left ", "", filled, "", width - filled,
                  row.metrics.step + 1, settings_.last_step, format_left(left_s(row))));
  progress_shown_ = true;
}

void Screen::clear_progress() {
  if (progress_shown_) put(progress_to_, "\r\033[K");
  progress_shown_ = false;
}

}  // namespace brume::app
