/// @file Intra-stage search by Mist's counting.
#pragma once

#include <cstddef>
#include <vector>

#include "mist_shapes.hpp"

namespace brume::tuner {

/// A strategy of a stage of some layers.
struct MistPoint {
  double stable_s = 0.0;
  double delta_s = 0.0;
  int strategy = 0;    ///< index of what a stage may do
  int recomputed = 0;  ///< layers
};

/// Points that no other one beats in t and d, by rising t and falling d.
using MistFront = std::vector<MistPoint>;

/// [stage][layers - least layers]
using MistFronts = std::vector<std::vector<MistFront>>;

/// What a stage may do beside its layers: ZeRO level and offload ratios of the space, those that
/// differ in the optimizer's ratio only side by side.
std::vector<analyzer::MistStrategy> mist_strategies(const MistShape& shape, const MistSpace& space);

/// Fronts of what fits; what makes an iteration longer than `cutoff_s` may be missing.
MistFronts mist_fronts(const MistShape& shape, const MistSpace& space,
                       const std::vector<analyzer::MistStrategy>& strategies, double cutoff_s,
                       MistSearch& search);

}  // namespace brume::tuner
