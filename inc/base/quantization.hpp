/// @file Formats of 4 and 8 bits in blocks: of weights that nothing trains, and of moments.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

namespace brume {

/// A row of values is cut into blocks. Each has the largest magnitude of its values as its scale in
/// fp32, and a code per value:
///
///   int8  value = scale code / 127, codes from -127 to 127
///   nf4   value = scale nf4_value(code), two codes per byte, the first one in its high bits
///
///   float8   value = +-scale float8_magnitude(code), a sign and 7 bits
///   ufloat8  value = scale float8_magnitude(code), 8 bits; none is negative
///
/// A block is its scale, then its codes. Values that were made of codes have the same codes again,
/// of int8 and nf4 also if a format of 16 bits held them. A value that is not finite makes all of
/// its block NaN.
///
/// @source  Dettmers et al. 2023 (QLoRA), appendix E; blocks of 64 and nibbles as bitsandbytes
enum class Quantization : std::uint8_t { none, int8, nf4, float8, ufloat8 };

constexpr const char* name(Quantization format) {
  constexpr const char* names[] = {"none", "int8", "nf4", "float8", "ufloat8"};
  return names[std::size_t(format)];
}

inline constexpr int quantized_block = 64;  ///< values per block

/// Bytes of a block's codes, which follow the 4 bytes of its scale.
constexpr int code_bytes(Quantization format) {
  return format == Quantization::nf4 ? quantized_block / 2 : quantized_block;
}
constexpr int block_bytes(Quantization format) { return int(sizeof(float)) + code_bytes(format); }

/// Means of 16 parts of the normal distribution, equally likely, scaled to [-1, 1].
constexpr float nf4_value(int code) {
  constexpr float values[] = {
      -1.0f,
      -0.6961928009986877f,
      -0.5250730514526367f,
      -0.39491748809814453f,
      -0.28444138169288635f,
      -0.18477343022823334f,
      -0.09105003625154495f,
      0.0f,
      0.07958029955625534f,
      0.16093020141124725f,
      0.24611230194568634f,
      0.33791524171829224f,
      0.44070982933044434f,
      0.5626170039176941f,
      0.7229568362236023f,
      1.0f,
  };
  return values[code];
}

/// code / 127: the largest code has the value 1, whatever the rounding of 1 / 127.
constexpr float int8_value(int code) { return float(code) * (1.0f / 127.0f); }
static_assert(int8_value(127) == 1.0f);

// --- float8 and ufloat8 --------------------------------------------------------------------------

constexpr bool is_float8(Quantization format) {
  return format == Quantization::float8 || format == Quantization::ufloat8;
}
constexpr int fraction_bits(Quantization format) { return format == Quantization::float8 ? 3 : 4; }

inline constexpr int float8_exponent = 14;  ///< 2^-14 is the smallest value of full precision
/// Bias of an exponent of fp32 less the bias of a code's exponent.
inline constexpr std::uint32_t float8_bias = 127 - float8_exponent - 1;
inline constexpr std::uint32_t to_nearest = 0x80000000u;

/// A value from 0 to 1 of a code with an exponent of 4 bits and a fraction: below 2^-14 the steps
/// are equal.
constexpr float float8_magnitude(int code, int fraction_bits) {
  const std::uint32_t bits = (std::uint32_t(code) << (23 - fraction_bits)) + (float8_bias << 23);
  const float large = std::bit_cast<float>(bits);
  const float small = 1.0f / float(1 << (float8_exponent + fraction_bits)) * float(code);
  return code >> fraction_bits == 0 ? small : large;
}
static_assert(float8_magnitude(15 << 3, 3) == 1.0f && float8_magnitude(15 << 4, 4) == 1.0f);

/// The code of x from 0 to 1, rounded up with the probability (x - below) / (above - below).
///
/// @param chance  32 bits that decide; to_nearest
constexpr int float8_code(float x, int fraction_bits, std::uint32_t chance) {
  const int shift = 23 - fraction_bits;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) + (chance >> (32 - shift));
  const int large = int(bits >> shift) - int(float8_bias << fraction_bits);
  const float steps = x * float(1 << (float8_exponent + fraction_bits));
  const int small = int(steps + float(std::int32_t(chance >> 13)) * (1.0f / float(1 << 19)));
  return x < 1.0f / float(1 << float8_exponent) ? small : large;
}

/// Divisor of a block's values before they become codes: a block of zeros divides by 1.
constexpr float block_divisor(float scale) { return scale > 0.0f ? scale : 1.0f; }

/// The byte of a value in float8 or ufloat8. What is not 0 is not rounded to 0 in ufloat8: steps
/// divide by the roots of second moments.
///
/// @param divisor  block_divisor of the block's scale
constexpr int float8_code(Quantization format, float value, float divisor, std::uint32_t chance) {
  const float x = (value < 0.0f ? -value : value) / divisor;
  const int code = float8_code(x, fraction_bits(format), chance);
  const int sign = value < 0.0f ? 0x80 : 0, least = x > 0.0f ? 1 : 0;
  return format == Quantization::float8 ? code | sign : code > least ? code : least;
}

constexpr float float8_value(Quantization format, int byte) {
  const bool has_sign = format == Quantization::float8;
  const float magnitude = float8_magnitude(has_sign ? byte & 0x7F : byte, fraction_bits(format));
  return has_sign && byte >= 0x80 ? -magnitude : magnitude;
}

// --- blocks --------------------------------------------------------------------------------------

/// Code i of a block as a value without its scale.
constexpr float unscaled_value(Quantization format, const std::byte* codes, int i) {
  if (is_float8(format)) return float8_value(format, int(codes[i]));
  if (format == Quantization::int8) return int8_value(int(std::int8_t(codes[i])));
  const int pair = int(codes[i / 2]);
  return nf4_value(i % 2 == 0 ? pair >> 4 : pair & 15);
}

inline float block_scale(const std::byte* block) {
  float scale = 0.0f;
  std::memcpy(&scale, block, sizeof scale);
  return scale;
}

/// The values of a block.
inline void dequantize_block(Quantization format, const std::byte* block,
                             std::span<float, quantized_block> values) {
  const float scale = block_scale(block);
  for (int i = 0; i < quantized_block; ++i)
    values[std::size_t(i)] = scale * unscaled_value(format, block + sizeof scale, i);
}

inline void quantize_block(Quantization format, std::span<const float, quantized_block> values,
                           std::byte* block) {
  float scale = 0.0f;
  bool finite = true;
  for (const float value : values) {
    finite = finite && std::isfinite(value);
    scale = std::fmax(scale, std::fabs(value));
  }
  if (!finite) scale = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(block, &scale, sizeof scale);
  std::byte* const bytes = block + sizeof scale;
  const float whole = block_divisor(scale);
  std::array<std::int32_t, quantized_block> codes{};
  if (!finite) return void(std::memset(bytes, 0, std::size_t(code_bytes(format))));
  if (is_float8(format)) {
    for (std::size_t i = 0; i < codes.size(); ++i)
      bytes[i] = std::byte(float8_code(format, values[i], whole, to_nearest));
    return;
  }
  if (format == Quantization::int8) {
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const float scaled = 127.0f * (values[i] / whole);
      codes[i] = std::int32_t(scaled + std::copysign(0.5f, scaled));
    }
    for (std::size_t i = 0; i < codes.size(); ++i) bytes[i] = std::byte(std::uint8_t(codes[i]));
    return;
  }
  for (int code = 1; code < 16; ++code) {
    const float between = 0.5f * (nf4_value(code - 1) + nf4_value(code));
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] += values[i] / whole > between ? 1 : 0;
  }
  for (std::size_t i = 0; i < codes.size(); i += 2)
    bytes[i / 2] = std::byte(std::uint8_t(codes[i] << 4 | codes[i + 1]));
}

}  // namespace brume
