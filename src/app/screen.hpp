/// @file What a running job shows: a head, a table of steps, a progress line on a terminal, a
/// closing report.
#pragma once

#include <array>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "io/metrics_log.hpp"
#include "io/run_file.hpp"
#include "schedule/program.hpp"

namespace brume::app {

/// What the planner expects of an iteration.
struct Expectation {
  double iteration_s = 0.0;
  std::array<double, schedule::num_channels> busy_s{};  ///< each channel of rank 0 at work
  int ranks_per_node = 1;                               ///< of rank 0's
  int cores = 1;                                        ///< of this node
  std::string profile;                                  ///< where it comes from, in words
};

struct ScreenSettings {
  std::string head;             ///< what runs where
  std::int64_t first_step = 0;  ///< done before
  std::int64_t last_step = 0;
  int log_every = 1;
  bool json = false;     ///< lines of metrics.jsonl instead of a table
  bool experts = false;  ///< the model has some
  bool pairs = false;    ///< of answers are trained on
};

/// Rank 0's view of a run, on standard output; progress on standard error.
class Screen {
 public:
  Screen(const ScreenSettings& settings, const Expectation& expected,
         const io::Yardstick& yardstick);
  /// Takes the line of progress away, where an error ends the steps.
  ~Screen() { clear_progress(); }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  void show(const io::Row& row);
  void show(const io::EvaluationRow& row);
  /// A line with the beginnings of prompt and answer.
  void show(const io::SampleRow& row);
  /// Counts no step after so many: they will be shown again.
  void rewind(std::int64_t steps);
  /// A line for people, on standard error where standard output has JSON.
  void report(const std::string& line) const;
  /// Predicted against measured time and memory, and how much of each channel's work was hidden.
  void close(const io::RunDescription& description);

 private:
  using Clock = std::chrono::steady_clock;
  enum class Outcome { updated, nonfinite, scaled_down, nothing_learned };
  struct Step {
    double iteration_s;  ///< NaN: it was left out
    Outcome outcome;
  };

  void say(const std::string& line) const;
  std::int64_t count(Outcome outcome) const;
  void put(std::FILE* out, const std::string& text) const;
  void report_time() const;
  void report_memory(const io::RunDescription& description) const;
  void report_channels() const;
  double left_s(const io::Row& row) const;
  void progress(const io::Row& row);
  void clear_progress();

  ScreenSettings settings_;
  Expectation expected_;
  io::Yardstick yardstick_;
  bool terminal_;           ///< that a person watches
  std::FILE* progress_to_;  ///< where the table goes too, because mpirun keeps no order of streams
  std::size_t columns_;     ///< of standard output
  mutable bool warned_ = false;  ///< that steps cannot be shown
  bool progress_shown_ = false;
  Clock::time_point first_done_;  ///< when the first step shown was
  std::vector<Step> steps_;       ///< from `settings_.first_step` on
  std::int64_t tries_ = 0;        ///< of these and of those that were undone
  engine::StepMetrics sum_;       ///< of times over the tries
  io::Row last_;
};

}  // namespace brume::app
