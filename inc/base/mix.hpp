/// @file Numbers that look random, from counters.
#pragma once

#include <cstdint>

namespace brume {

/// A well-mixed 64-bit hash.
/// @source  splitmix64: Steele, Lea and Flood 2014; constants of Stafford's variant 13
constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// The step between splitmix64's counters.
inline constexpr std::uint64_t golden_step = 0x9e3779b97f4a7c15u;

/// A number in (0, 1) of well-mixed bits.
constexpr double uniform(std::uint64_t bits) { return (double(bits >> 11) + 0.5) * 0x1.0p-53; }

}  // namespace brume
