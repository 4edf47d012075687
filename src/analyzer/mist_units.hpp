/// @file What Mist's time and memory have in common.
#pragma once

namespace brume::analyzer {

inline constexpr double bytes_per_mib = 1024.0 * 1024.0;
inline constexpr double bytes_per_gib = 1024.0 * bytes_per_mib;
inline constexpr double optimizer_per_weight = 6.0;  ///< fp32 weight and moments, over fp16 weight

}  // namespace brume::analyzer
