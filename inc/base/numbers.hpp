/// @file Infinity, and divisors.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

namespace brume {

inline constexpr double infinity = std::numeric_limits<double>::infinity();

/// The divisors of a number, rising.
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

}  // namespace brume
