/// @file Units of memory.
#pragma once

namespace brume {

inline constexpr double bytes_per_mib = 1024.0 * 1024.0;
inline constexpr double bytes_per_gib = 1024.0 * bytes_per_mib;

}  // namespace brume
