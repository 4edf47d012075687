/// @file The activations' formulas, for one number. Constexpr, so that code on devices may call
/// them.
#pragma once

#include "kernels/vector_math.hpp"

namespace brume::kernels {

// (1 + tanh(t)) / 2 = 1 / (1 + e^-2t), so gelu(z) = z s(z) with s = 1 / (1 + e^-w) and
// w = 2 sqrt(2/pi) (z + 0.044715 z^3). No digits cancel for negative z, as they would in 1 + tanh.
inline constexpr float gelu_steepness = 1.5957691216f;  // 2 sqrt(2 / pi)
inline constexpr float gelu_cubic = 0.044715f;

constexpr float gelu_tanh(float z) {
  const float w = gelu_steepness * z * (1.0f + gelu_cubic * z * z);
  return z * (1.0f / (1.0f + vector_exp(-w)));
}

/// gelu'(z) = s + z s (1 - s) w'(z),  1 - s = e^-w s
constexpr float gelu_tanh_slope(float z) {
  const float decay = vector_exp(-gelu_steepness * z * (1.0f + gelu_cubic * z * z));
  const float s = 1.0f / (1.0f + decay);
  return s + z * s * (decay * s) * (gelu_steepness * (1.0f + 3.0f * gelu_cubic * z * z));
}

/// The normal distribution at z: its integral up to z, and its density.
struct Normal {
  float integral, density;
};

/// For z < 0 the integral is erfc(x)/2 with x = -z / sqrt(2), and by symmetry for z > 0.
///
///   erfc(x)/2 = e^(-x^2) t P(t),  t = 1 / (1 + 0.4 x)
///
/// P, of degree 8, is within 6e-8 relative for 0 <= x <= 9.4, where the result leaves fp32's normal
/// range: a minimax fit of e^(x^2) erfc(x) / (2 t) in t, made for this file by Lawson's iteration.
constexpr Normal normal(float z) {
  const float size = z < 0.0f ? -z : z;
  const float decay = vector_exp(-0.5f * z * z);
  const float t = 1.0f / (1.0f + 0.28284271f * size);
  float p = 0.020027105798f;
  p = p * t - 0.067208983471f;
  p = p * t + 0.035814474695f;
  p = p * t + 0.051154448007f;
  p = p * t + 0.034844848357f;
  p = p * t + 0.098877672852f;
  p = p * t + 0.100375402016f;
  p = p * t + 0.113302815196f;
  p = p * t + 0.112812244905f;
  const float tail = decay * (t * p);
  return {z < 0.0f ? tail : 1.0f - tail, 0.39894228f * decay};
}

constexpr float gelu_erf(float z) { return z * normal(z).integral; }

/// gelu'(z) = integral(z) + z density(z)
constexpr float gelu_erf_slope(float z) {
  const Normal at = normal(z);
  return at.integral + z * at.density;
}

/// A gate and its slope.
struct Gate {
  float value, slope;
};

constexpr Gate gelu_gate(float z) { return {gelu_tanh(z), gelu_tanh_slope(z)}; }

/// silu(z) = z s,  silu'(z) = s + z s (1 - s),  s = 1 / (1 + e^-z)
constexpr Gate silu(float z) {
  // 1 - s as e^-z s: no digits cancel for large z.
  const float decay = vector_exp(-z), s = 1.0f / (1.0f + decay);
  return {z * s, s + z * s * (decay * s)};
}

/// A gate, and the factor by which it lets its value through.
struct GatedValue {
  Gate gate;
  float factor, factor_slope;
};

inline constexpr float clamped_steepness = 1.702f, clamped_limit = 7.0f;

/// See clamped_swiglu_forward.
constexpr GatedValue clamped(float gate, float value) {
  const float z = gate > clamped_limit ? clamped_limit : gate;
  const float above = value > clamped_limit ? clamped_limit : value;
  const float bounded = above < -clamped_limit ? -clamped_limit : above;
  const float decay = vector_exp(-clamped_steepness * z), s = 1.0f / (1.0f + decay);
  const float slope = s + clamped_steepness * z * s * (decay * s);
  return {{z * s, gate > clamped_limit ? 0.0f : slope},
          1.0f + bounded,
          value > clamped_limit || value < -clamped_limit ? 0.0f : 1.0f};
}

}  // namespace brume::kernels
