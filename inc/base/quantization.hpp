/// @file Formats of 4 and 8 bits that weights may be kept in while nothing trains them.
#pragma once

#include <array>
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
/// A block is its scale, then its codes. Values that were made of codes have the same codes again,
/// also if a format of 16 bits held them. A value that is not finite makes all of its block NaN.
///
/// @source  Dettmers et al. 2023 (QLoRA), appendix E; blocks of 64 and nibbles as bitsandbytes
enum class Quantization : std::uint8_t { none, int8, nf4 };

constexpr const char* name(Quantization format) {
  constexpr const char* names[] = {"none", "int8", "nf4"};
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

/// Code i of a block as a value without its scale.
constexpr float unscaled_value(Quantization format, const std::byte* codes, int i) {
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
  const float whole = scale > 0.0f ? scale : 1.0f;  // a block of zeros divides by it
  std::array<std::int32_t, quantized_block> codes{};
  if (!finite) return void(std::memset(bytes, 0, std::size_t(code_bytes(format))));
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
