/// @file Plain element-wise operators.
#pragma once

#include "reference/arrays.hpp"

namespace brume::reference {

/// y[n,c] = x[n,c] + bias[c]
inline Doubles add_bias(const Doubles& x, const Doubles& bias) {
  Doubles y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] + bias[i % bias.size()];
  return y;
}

/// db[c] = sum_n dy[n,c]
inline Doubles bias_backward(const Doubles& dy, std::size_t C) {
  Doubles db(C, 0.0);
  for (std::size_t i = 0; i < dy.size(); ++i) db[i % C] += dy[i];
  return db;
}

/// z/2 (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3)))
inline double gelu(double z) {
  return 0.5 * z * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (z + 0.044715 * z * z * z)));
}

/// gelu'(z) = (1 + t)/2 + z/2 (1 - t^2) sqrt(2/pi) (1 + 3 0.044715 z^2),  t the tanh above
inline double gelu_slope(double z) {
  const double t = std::tanh(std::sqrt(2.0 / M_PI) * (z + 0.044715 * z * z * z));
  const double inner = std::sqrt(2.0 / M_PI) * (1.0 + 3.0 * 0.044715 * z * z);
  return 0.5 * (1.0 + t) + 0.5 * z * (1.0 - t * t) * inner;
}

inline Doubles gelu_forward(const Doubles& u, const Doubles& bias) {
  Doubles a(u.size());
  for (std::size_t i = 0; i < u.size(); ++i) a[i] = gelu(u[i] + bias[i % bias.size()]);
  return a;
}

inline Doubles gelu_backward(const Doubles& u, const Doubles& bias, const Doubles& da) {
  Doubles du(u.size());
  for (std::size_t i = 0; i < u.size(); ++i)
    du[i] = da[i] * gelu_slope(u[i] + bias[i % bias.size()]);
  return du;
}

}  // namespace brume::reference
