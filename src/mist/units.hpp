/// @file What Mist's time and memory have in common.
#pragma once

#include "base/units.hpp"

namespace brume::mist {

inline constexpr double fp16_bytes = 2.0;
inline constexpr double optimizer_per_weight = 6.0;  ///< fp32 weight and moments, over fp16 weight

}  // namespace brume::mist
