/// @file Functions without branches or calls, so that loops over them become vector instructions.
/// Constexpr, so that code on devices may call them.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

namespace brume::kernels {

/// e^x to 1e-7 relative: 0 below -87.3 (the smallest normal float), e^88 above 88; NaN stays NaN.
/// Devices, which have an instruction for it, to (2 + |x|) 1e-7.
///
///   e^x = 2^n e^r,  n = round(x / ln 2),  r = x - n ln 2 in [-0.35, 0.35], e^r by a polynomial
///
/// @source  Cephes, expf
constexpr float vector_exp(float x) {
  constexpr float highest = 88.0f;
#ifdef __CUDA_ARCH__
  if (!std::is_constant_evaluated()) {
    float power;  // of two; of a denormal result, 0
    asm("ex2.approx.ftz.f32 %0, %1;"
        : "=f"(power)
        : "f"((x > highest ? highest : x) * 1.44269504f));
    return power;
  }
#endif
  constexpr float lowest = -87.3f;
  // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits of the sum.
  constexpr float rounder = 12582912.0f;
  const float above = x < lowest ? lowest : x;
  const float bounded = above > highest ? highest : above;
  const float rounded = bounded * 1.44269504f + rounder;
  const float n = rounded - rounder;
  const float r = bounded - n * 0.693145752f - n * 1.42860677e-6f;  // ln 2 in two parts

  float p = 1.98756912e-4f;
  p = p * r + 1.39819994e-3f;
  p = p * r + 8.33345205e-3f;
  p = p * r + 4.16657962e-2f;
  p = p * r + 1.66666656e-1f;
  p = p * r + 0.5f;
  p = p * r * r + r + 1.0f;

  const std::uint32_t exponent = (std::bit_cast<std::uint32_t>(rounded) << 23) + 0x3f800000u;
  return x < lowest ? 0.0f : p * std::bit_cast<float>(exponent);
}

}  // namespace brume::kernels
