/// @file Soft caps of scores and logits, for one number. Constexpr, so that code on devices may
/// call them.
#pragma once

#include "kernels/vector_math.hpp"

namespace brume::kernels {

/// tanh(x) to 2e-7 relative.
///
/// @source  Cephes, tanhf
constexpr float vector_tanh(float x) {
  const float z = x * x, size = x < 0.0f ? -x : x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float far = 1.0f - 2.0f / (vector_exp(2.0f * size) + 1.0f);
  return size < 0.625f ? p * z * x + x : x < 0.0f ? -far : far;
}

/// cap tanh(x / cap); with cap 0, x
constexpr float soft_cap(float x, float cap) { return cap > 0.0f ? cap * vector_tanh(x / cap) : x; }

/// The slope of soft_cap, by its value.
constexpr float soft_cap_slope(float value, float cap) {
  const float share = cap > 0.0f ? value / cap : 0.0f;
  return 1.0f - share * share;
}

}  // namespace brume::kernels
