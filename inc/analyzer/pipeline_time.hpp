/// @file Iteration time of a 1F1B pipeline whose stages need not be equal.
#pragma once

#include <span>

namespace brume::analyzer {

/// Time of one pipeline stage, as the intra-stage analysis predicts it.
struct StageTime {
  double stable_s;  ///< [s] a middle microbatch, forward + backward, overlap already taken off
  double delta_s;   ///< [s] what the first and last microbatch add to that
};

/// Predicts the time of one training iteration.
///
///   T = (G - 1) max_i t_i + sum_i t_i + max(0, max_i (d_i - sum_{j<i} t_j))
///
/// with t_i = stages[i].stable_s and d_i = stages[i].delta_s.
///
/// @param stages            [S] first stage first, S >= 1
/// @param num_microbatches  G, microbatches per iteration, >= 1
/// @return                  [s]
/// @throws Error(bug)       when S or G is below 1
/// @source                  Mist (EuroSys'25), objective of the inter-stage tuner
double iteration_time(std::span<const StageTime> stages, int num_microbatches);

}  // namespace brume::analyzer
