/// @file The number format fp16, IEEE 754 binary16, for storage; arithmetic is in fp32.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

namespace brume {

/// 1 sign, 5 exponent and 10 fraction bits. From float by rounding to nearest, ties to even:
/// relative error at most 2^-11 from 2^-14 on, below it absolute error at most 2^-25; from 65520 on
/// infinity. Infinities and NaN stay what they are.
struct float16 {
  float16() = default;
  constexpr float16(float value) : bits(rounded(value)) {}
  constexpr float16& operator=(float value) {  // as bfloat16's: loops become vector instructions
    bits = rounded(value);
    return *this;
  }
  constexpr operator float() const { return widened(bits); }

  std::uint16_t bits;

 private:
  // Hosts convert without branches: both ways are computed and one is taken, so that loops become
  // vector instructions. Devices have an instruction for it.

  static constexpr std::uint16_t rounded(float value) {
#ifdef __CUDA_ARCH__
    if (!std::is_constant_evaluated()) {
      std::uint16_t narrow;
      asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow) : "f"(value));
      return narrow;
    }
#endif
    const std::uint32_t wide = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = wide & 0x7fffffffu;
    // Exponents count from 15 instead of 127; a carry out of the fraction goes into the exponent,
    // that of the largest number makes it infinity.
    const std::uint32_t normal =
        (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    // The last bit of 0.5 + x is 2^-24, the smallest number: the addition rounds.
    const std::uint32_t small =
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - (126u << 23);
    const std::uint32_t huge =
        magnitude > 0x7f800000u ? 0x7e00u | ((magnitude >> 13) & 0x3ffu) : 0x7c00u;
    const std::uint32_t finite = magnitude < (113u << 23) ? small : normal;
    return std::uint16_t((wide >> 16 & 0x8000u) | (magnitude >= (143u << 23) ? huge : finite));
  }

  static constexpr float widened(std::uint16_t narrow) {
#ifdef __CUDA_ARCH__
    if (!std::is_constant_evaluated()) {
      float wide;
      asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(narrow));
      return wide;
    }
#endif
    const std::uint32_t sign = std::uint32_t(narrow & 0x8000u) << 16;
    const std::uint32_t magnitude = std::uint32_t(narrow & 0x7fffu) << 13;
    // Below the smallest normal number 2^-14 the fraction counts from 0 instead of 1.
    const std::uint32_t small =
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude + (113u << 23)) - 0x1p-14f);
    const std::uint32_t normal = magnitude + (112u << 23);
    const std::uint32_t huge = magnitude + (224u << 23);  // infinities and NaN
    const std::uint32_t finite = magnitude < (1u << 23) ? small : normal;
    return std::bit_cast<float>(sign | (magnitude >= (31u << 23) ? huge : finite));
  }
};

}  // namespace brume
