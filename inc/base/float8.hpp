/// @file The number formats of 8 bits that matrix products may take their factors in.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace brume {

/// 1 sign bit, `fraction_bits` and the rest of the exponent, which counts from `bias`: the formats
/// of "FP8 Formats for Deep Learning" (arXiv 2209.05433). From float by rounding to nearest, ties
/// to even; what is larger than the largest number, infinity too, becomes that. A NaN stays one.
///
/// @tparam largest_bits  of the largest number; codes above it are infinity and NaN
template <int fraction_bits, int bias, std::uint8_t largest_bits>
struct Float8 {
  Float8() = default;
  constexpr explicit Float8(float value) : bits(rounded(value)) {}
  constexpr explicit operator float() const { return widened(bits); }

  static constexpr Float8 from_bits(std::uint8_t bits) {
    Float8 value;
    value.bits = bits;
    return value;
  }
  static constexpr float largest() { return widened(largest_bits); }

  std::uint8_t bits = 0;

 private:
  static constexpr int dropped = 23 - fraction_bits;  // bits of a float's fraction
  static constexpr std::uint32_t infinity = 0x7f800000u;
  static constexpr std::uint8_t last_fraction = (1 << fraction_bits) - 1;
  /// It then follows the largest number.
  static constexpr bool has_infinity = (largest_bits & last_fraction) == last_fraction;

  /// 2^exponent
  static constexpr float power(int exponent) {
    return std::bit_cast<float>(std::uint32_t(exponent + 127) << 23);
  }

  // Both ways are computed and one is taken, so that loops become vector instructions.

  static constexpr std::uint8_t rounded(float value) {
    const std::uint32_t wide = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = wide & 0x7fffffffu;
    // A carry out of the fraction goes into the exponent.
    const std::uint32_t normal = (magnitude - (std::uint32_t(127 - bias) << 23) +
                                  ((1u << (dropped - 1)) - 1) + ((magnitude >> dropped) & 1u)) >>
                                 dropped;
    // The last bit of step * 2^23 + x is the smallest number `step`: the addition rounds.
    constexpr float shift = power(1 - bias - fraction_bits + 23);
    const std::uint32_t small =
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + shift) -
        std::bit_cast<std::uint32_t>(shift);
    const bool is_small = magnitude < std::uint32_t(128 - bias) << 23;
    const std::uint32_t finite = std::min<std::uint32_t>(is_small ? small : normal, largest_bits);
    return std::uint8_t((wide >> 24 & 0x80u) | (magnitude > infinity ? 0x7fu : finite));
  }

  static constexpr float widened(std::uint8_t narrow) {
    const std::uint32_t sign = std::uint32_t(narrow & 0x80u) << 24;
    const std::uint32_t code = narrow & 0x7fu;
    const std::uint32_t normal = (code << dropped) + (std::uint32_t(127 - bias) << 23);
    // Below the smallest normal number the fraction counts from 0 instead of 1.
    const float lowest = power(1 - bias);
    const std::uint32_t small = std::bit_cast<std::uint32_t>(
        std::bit_cast<float>((code << dropped) + (std::uint32_t(128 - bias) << 23)) - lowest);
    const std::uint32_t huge = has_infinity && code == largest_bits + 1u ? infinity : 0x7fc00000u;
    const std::uint32_t finite = code < 1u << fraction_bits ? small : normal;
    return std::bit_cast<float>(sign | (code > largest_bits ? huge : finite));
  }
};

/// 4 exponent and 3 fraction bits, for weights and activations: relative error at most 2^-4 from
/// 2^-6 to 448, below it absolute error at most 2^-10. It has no infinity.
using float8_e4m3 = Float8<3, 7, 0x7e>;
/// 5 exponent and 2 fraction bits, for gradients: relative error at most 2^-3 from 2^-14 to 57344,
/// below it absolute error at most 2^-17.
using float8_e5m2 = Float8<2, 15, 0x7b>;

/// 2^s that brings `largest` into the upper but one binade of the format, where nothing saturates:
/// [2^7, 2^8) of e4m3, [2^14, 2^15) of e5m2; |s| is at most 126. @return NaN where it is not finite
template <class Format>
constexpr float float8_scale(float largest) {
  constexpr int top = int(std::bit_cast<std::uint32_t>(Format::largest()) >> 23) - 127 - 1;
  const int exponent = int(std::bit_cast<std::uint32_t>(largest) >> 23 & 0xffu);
  if (exponent == 0xff) return std::bit_cast<float>(0x7fc00000u);
  const int power = std::clamp(top - (exponent - 127), -126, 126);
  return std::bit_cast<float>(std::uint32_t(power + 127) << 23);
}

}  // namespace brume
