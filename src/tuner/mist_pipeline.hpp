/// @file Inter-stage search by Mist's counting: exact, by dynamic programs.
#pragma once

#include "mist_fronts.hpp"
#include "numbers.hpp"

namespace brume::tuner {

/// Layers and strategy of each stage.
struct MistChoice {
  std::vector<int> layers;
  std::vector<MistPoint> stages;
  double iteration_s = infinity;
};

/// The choice with the shortest iteration below `cutoff_s`; without stages if there is none.
///
///   T = A_S + (G - 1) max_i t_i,   A_i = max(A_{i-1}, d_i) + t_i,   A_0 = -infinity
///
/// is `analyze_mist`'s time of an iteration. A_i grows with A_{i-1}, so one number for each (stage,
/// layers used) is enough once the slowest stage is bounded; those bounds are halved until none is
/// left between which a faster choice can lie.
MistChoice mist_pipeline(const MistShape& shape, const MistFronts& fronts, double cutoff_s,
                         MistSearch& search);

}  // namespace brume::tuner
