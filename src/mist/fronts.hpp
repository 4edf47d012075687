/// @file Intra-stage search by Mist's counting.
#pragma once

#include <cstddef>
#include <vector>

#include "shapes.hpp"

namespace brume::mist {

/// A strategy of a stage of some layers.
struct Point {
  double stable_s = 0.0;
  double delta_s = 0.0;
  int strategy = 0;    ///< index of what a stage may do
  int recomputed = 0;  ///< layers
};

/// Points that no other one beats in t and d, by rising t and falling d.
using MistFront = std::vector<Point>;

/// [stage][layers - least layers]
using Fronts = std::vector<std::vector<MistFront>>;

/// What a stage may do beside its layers: ZeRO level and offload ratios of the space, those that
/// differ in the optimizer's ratio only side by side.
std::vector<Strategy> strategies_of(const Shape& shape, const Space& space);

/// Fronts of what fits; what makes an iteration longer than `cutoff_s` may be missing.
Fronts find_fronts(const Shape& shape, const Space& space, const std::vector<Strategy>& strategies,
                   double cutoff_s, Search& search);

}  // namespace brume::mist
