/// @file Plain gated and exact activations.
#pragma once

#include "reference/arrays.hpp"

namespace brume::reference {

inline double silu(double z) { return z / (1.0 + std::exp(-z)); }

/// u [N, 2 F], gate and value side by side; a [N, F]
inline Doubles swiglu_forward(const Doubles& u, int F) {
  Doubles a;
  for (std::size_t n = 0; n < u.size() / (2 * F); ++n)
    for (int f = 0; f < F; ++f) a.push_back(silu(u[n * 2 * F + f]) * u[n * 2 * F + F + f]);
  return a;
}

inline double gelu_tanh(double z) {
  return 0.5 * z * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (z + 0.044715 * z * z * z)));
}

inline Doubles geglu_forward(const Doubles& u, int F) {
  Doubles a;
  for (std::size_t n = 0; n < u.size() / (2 * F); ++n)
    for (int f = 0; f < F; ++f) a.push_back(gelu_tanh(u[n * 2 * F + f]) * u[n * 2 * F + F + f]);
  return a;
}

inline Doubles clamped_swiglu_forward(const Doubles& u, int F) {
  Doubles a;
  for (std::size_t n = 0; n < u.size() / (2 * F); ++n)
    for (int f = 0; f < F; ++f) {
      const double gate = std::min(u[n * 2 * F + f], 7.0);
      const double value = std::clamp(u[n * 2 * F + F + f], -7.0, 7.0);
      a.push_back(gate / (1.0 + std::exp(-1.702 * gate)) * (value + 1.0));
    }
  return a;
}

inline Doubles swiglu_backward(const Doubles& u, const Doubles& da, int F) {
  Doubles du(u.size());
  for (std::size_t n = 0; n < u.size() / (2 * F); ++n)
    for (int f = 0; f < F; ++f) {
      const double z = u[n * 2 * F + f], s = 1.0 / (1.0 + std::exp(-z));
      du[n * 2 * F + f] = da[n * F + f] * u[n * 2 * F + F + f] * s * (1.0 + z * (1.0 - s));
      du[n * 2 * F + F + f] = da[n * F + f] * silu(z);
    }
  return du;
}

/// z/2 erfc(-z / sqrt(2)), which is z/2 (1 + erf(z / sqrt(2))) without its cancellation
inline double gelu_erf(double z) { return 0.5 * z * std::erfc(-z / std::sqrt(2.0)); }

inline Doubles gelu_erf_forward(const Doubles& u, const Doubles& bias) {
  Doubles a(u.size());
  for (std::size_t i = 0; i < u.size(); ++i) a[i] = gelu_erf(u[i] + bias[i % bias.size()]);
  return a;
}

inline Doubles gelu_erf_backward(const Doubles& u, const Doubles& bias, const Doubles& da) {
  Doubles du(u.size());
  for (std::size_t i = 0; i < u.size(); ++i) {
    const double z = u[i] + bias[i % bias.size()];
    const double density = std::exp(-0.5 * z * z) / std::sqrt(2.0 * M_PI);
    du[i] = da[i] * (0.5 * std::erfc(-z / std::sqrt(2.0)) + z * density);
  }
  return du;
}

}  // namespace brume::reference
