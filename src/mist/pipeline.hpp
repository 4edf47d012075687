/// @file Inter-stage search by Mist's counting: exact, by dynamic programs.
#pragma once

#include "base/numbers.hpp"
#include "fronts.hpp"

namespace brume::mist {

/// Layers and strategy of each stage.
struct Choice {
  std::vector<int> layers;
  std::vector<Point> stages;
  double iteration_s = infinity;
};

/// The choice with the shortest iteration below `cutoff_s`; without stages if there is none.
///
///   T = A_S + (G - 1) max_i t_i,   A_i = max(A_{i-1}, d_i) + t_i,   A_0 = -infinity
///
/// is `predict`'s time of an iteration. A_i grows with A_{i-1}, so one number for each (stage,
/// layers used) is enough once the slowest stage is bounded; those bounds are halved until none is
/// left between which a faster choice can lie.
Choice choose(const Shape& shape, const Fronts& fronts, double cutoff_s, Search& search);

}  // namespace brume::mist
