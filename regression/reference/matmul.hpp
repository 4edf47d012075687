/// @file Plain products of linear layers.
#pragma once

#include "reference/arrays.hpp"

namespace brume::reference {

/// y[n,o] = sum_i x[n,i] w[o,i]
inline Doubles linear_forward(const Doubles& x, const Doubles& w, int N, int I, int O) {
  Doubles y(std::size_t(N) * O, 0.0);
  for (int n = 0; n < N; ++n)
    for (int o = 0; o < O; ++o)
      for (int i = 0; i < I; ++i) y[n * O + o] += x[n * I + i] * w[o * I + i];
  return y;
}

/// dx[n,i] = sum_o dy[n,o] w[o,i]
inline Doubles linear_backward_input(const Doubles& dy, const Doubles& w, int N, int I, int O) {
  Doubles dx(std::size_t(N) * I, 0.0);
  for (int n = 0; n < N; ++n)
    for (int o = 0; o < O; ++o)
      for (int i = 0; i < I; ++i) dx[n * I + i] += dy[n * O + o] * w[o * I + i];
  return dx;
}

/// dw[o,i] = sum_n dy[n,o] x[n,i]
inline Doubles linear_backward_weight(const Doubles& dy, const Doubles& x, int N, int I, int O) {
  Doubles dw(std::size_t(O) * I, 0.0);
  for (int n = 0; n < N; ++n)
    for (int o = 0; o < O; ++o)
      for (int i = 0; i < I; ++i) dw[o * I + i] += dy[n * O + o] * x[n * I + i];
  return dw;
}

}  // namespace brume::reference
