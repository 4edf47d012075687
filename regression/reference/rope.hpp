/// @file Plain rotary positions: a rotation matrix a pair of features.
#pragma once

#include "reference/arrays.hpp"

namespace brume::reference {

/// x [N, H D]; token n stands at place n mod T; `direction` is 1 forwards, -1 for the gradient.
inline Doubles rope(const Doubles& x, const Doubles& frequencies, int T, int width,
                    double direction) {
  const int half = int(frequencies.size());
  Doubles y(x.size());
  for (std::size_t n = 0; n < x.size() / width; ++n)
    for (int c = 0; c < width; ++c) {
      const int i = c % (2 * half) % half;
      const bool low = c % (2 * half) < half;
      const double angle = direction * double(int(n) % T) * frequencies[i];
      const double own = x[n * width + c], other = x[n * width + (low ? c + half : c - half)];
      y[n * width + c] = own * std::cos(angle) + (low ? -1.0 : 1.0) * other * std::sin(angle);
    }
  return y;
}

}  // namespace brume::reference
