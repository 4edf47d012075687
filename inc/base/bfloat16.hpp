/// @file The number format bf16: the upper half of a float, for storage; arithmetic is in fp32.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

namespace brume {

/// 1 sign, 8 exponent and 7 fraction bits. From float by rounding to nearest, ties to even:
/// relative error at most 2^-8; infinities and NaN stay what they are.
struct bfloat16 {
  bfloat16() = default;
  constexpr bfloat16(float value) : bits(rounded(value)) {}
  // Without this operator an assignment would copy a temporary, and loops that store could not
  // become vector instructions.
  constexpr bfloat16& operator=(float value) {
    bits = rounded(value);
    return *this;
  }
  constexpr operator float() const { return std::bit_cast<float>(std::uint32_t(bits) << 16); }

  std::uint16_t bits;

 private:
  /// Devices have an instruction for it.
  static constexpr std::uint16_t rounded(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if (!std::is_constant_evaluated()) {
      std::uint16_t narrow;
      asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow) : "f"(value));
      return narrow;
    }
#endif
    const auto wide = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t nearest = (wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16;
    const bool is_nan = (wide & 0x7fffffffu) > 0x7f800000u;
    return std::uint16_t(is_nan ? (wide >> 16) | 0x40u : nearest);  // a NaN stays quiet
  }
};

}  // namespace brume
