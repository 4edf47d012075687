/// @file The numbers of a run, and what they advise.
#pragma once

#include <string>
#include <vector>

#include "report/report.hpp"

namespace brume::report {

/// The first rank of a stage in the last iteration.
struct StageTimes {
  int stage;
  schedule::Seconds measured, predicted;
};

/// From how many times the usual time on an iteration is a stray one.
inline constexpr double unusual = 1.5;

struct Summary {
  std::int64_t steps = 0;            ///< done
  std::int64_t skipped = 0;          ///< because loss or gradient was not finite
  std::int64_t nothing_learned = 0;  ///< skipped because their batches had nothing to learn
  double data_share = 0.0;           ///< of the steps' time: waited for batches
  // NaN: never measured.
  double loss = 0.0;  ///< of the last step
  double best_valid_loss = 0.0;
  double tokens_per_s = 0.0;      ///< median, as what follows
  double measured_s = 0.0;        ///< of an iteration
  double slow_s = 0.0;            ///< that a tenth of the iterations exceeds
  double predicted_s = 0.0;       ///< of the last step's plan
  double last_measured_s = 0.0;   ///< the last iteration, by its timeline; 0: none
  double last_predicted_s = 0.0;  ///< the same in the simulation
  std::vector<StageTimes> stages;

  /// Whether the last iteration tells of the others.
  bool last_is_usual() const { return last_measured_s < unusual * measured_s; }
  double ratio() const { return predicted_s > 0.0 ? measured_s / predicted_s : 0.0; }
};
Summary summary(const Run& run);

/// The most important findings, three sentences at most.
std::vector<std::string> hints(const Run& run, const Summary& summary);

/// The timeline of a rank; none where there is none.
const io::RankTimeline* timeline_of(const std::vector<io::RankTimeline>& timelines, int rank);
double end_s(const std::vector<io::RankTimeline>& timelines);

}  // namespace brume::report
