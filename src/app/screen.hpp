/// @file What a running job shows: a table in the log, a progress line on a terminal, a closing
/// report.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "io/run_file.hpp"

namespace brume::app {

/// Whether a person watches: stderr is a terminal, or that of mpirun is, which passes ours on.
bool on_terminal();

/// Rank 0's view of a run.
class Screen {
 public:
  /// @param predicted_s  iteration time the planner expects
  Screen(std::int64_t first_step, std::int64_t steps, int log_every, double predicted_s);

  void show(const io::Row& row);
  void show_evaluation(std::int64_t step, double loss);
  /// Predicted against measured time and memory, and how much of each channel's work was hidden.
  void close(const io::RunDescription& description);

 private:
  void progress(const io::Row& row);
  void clear_progress();

  std::int64_t first_step_, steps_;
  int log_every_;
  double predicted_s_;
  bool terminal_;
  bool progress_shown_ = false;
  std::vector<double> measured_s_;              ///< iteration times of the steps shown
  engine::StepMetrics sum_;                     ///< of busy and hidden time over them
  std::int64_t skipped_ = 0, scaled_down_ = 0;  ///< steps without an update
  io::Row last_;
};

}  // namespace brume::app
