/// @file Divisors, and what comparisons of costs allow for.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

namespace brume::tuner {

inline constexpr double infinity = std::numeric_limits<double>::infinity();
inline constexpr double sum_rounding = 1e-12;   ///< relative, of sums in another order
inline constexpr double bound_rounding = 1e-9;  ///< relative, of bounds and of prices that cancel

/// Rising.
inline std::vector<int> divisors(int number) {
  std::vector<int> found;
  for (int d = 1; d <= number / d; ++d) {
    if (number % d != 0) continue;
    found.push_back(d);
    if (d != number / d) found.push_back(number / d);
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace brume::tuner
