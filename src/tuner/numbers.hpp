/// @file Rounding that comparisons of costs allow for.
#pragma once

#include "base/numbers.hpp"

namespace brume::tuner {

inline constexpr double sum_rounding = 1e-12;   ///< relative, of sums in another order
inline constexpr double bound_rounding = 1e-9;  ///< relative, of bounds and of prices that cancel

}  // namespace brume::tuner
