/// @file Blocks to bf16 by vector instructions that round.
#pragma once

#ifdef __x86_64__

#include <cstring>

#include <immintrin.h>

#include "base/quantization.hpp"
#include "kernels/host/loops.hpp"

#define BRUME_WITH_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

namespace brume::kernels {

using Words = std::uint32_t __attribute__((vector_size(4 * lanes)));
using Integers = std::int32_t __attribute__((vector_size(4 * lanes)));
using Halves = std::uint16_t __attribute__((vector_size(4 * lanes)));

constexpr __mmask16 all_lanes = 0xffff;

template <class Vector>
inline Vector loaded(const void* from) {
  Vector out;
  std::memcpy(&out, from, sizeof out);
  return out;
}

/// Looks up 32 codes at once among the block's 16 values, rounded.
BRUME_WITH_BF16 inline void dequantize_nf4(const std::byte* block, bfloat16* out) {
  alignas(64) static constexpr float unscaled[lanes] = {
      nf4_value(0),  nf4_value(1),  nf4_value(2),  nf4_value(3), nf4_value(4),  nf4_value(5),
      nf4_value(6),  nf4_value(7),  nf4_value(8),  nf4_value(9), nf4_value(10), nf4_value(11),
      nf4_value(12), nf4_value(13), nf4_value(14), nf4_value(15)};
  const auto scaled = __m512(block_scale(block) * loaded<Lanes>(unscaled));
  const auto values = Halves(_mm512_cvtne2ps_pbh(scaled, scaled));
  for (int half = 0; half < 2; ++half) {
    const auto codes = loaded<__m128i>(block + sizeof(float) + lanes * half);
    const auto pairs = Words(_mm512_maskz_cvtepu8_epi32(all_lanes, codes));
    // An index has 5 bits, and values repeat after 16.
    const Halves found = __builtin_shuffle(values, Halves(pairs >> 4 | pairs << 16));
    std::memcpy(out + 2 * lanes * half, &found, sizeof found);
  }
}

BRUME_WITH_BF16 inline void dequantize_int8(const std::byte* block, bfloat16* out) {
  const float scale = block_scale(block);
  for (int i = 0; i < quantized_block; i += 2 * lanes) {
    const auto values = [&](int from) BRUME_WITH_BF16 {
      const auto codes = loaded<__m128i>(block + sizeof scale + from);
      const auto wide = Integers(_mm512_maskz_cvtepi8_epi32(all_lanes, codes));
      return __m512(scale * (__builtin_convertvector(wide, Lanes) * int8_value(1)));
    };
    const auto rounded = _mm512_cvtne2ps_pbh(values(i + lanes), values(i));
    std::memcpy(out + i, &rounded, sizeof rounded);
  }
}

}  // namespace brume::kernels

#endif
