#include "kernels/quantized.hpp"

#include <cstring>
#include <type_traits>

#include <oneapi/dnnl/dnnl.h>

#include "kernels/affine.hpp"
#include "kernels/host/loops.hpp"
#include "kernels/host/quantized_blocks.hpp"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace brume::kernels {
namespace {

template <class Storage>
void dequantize_one(Quantization format, const std::byte* block, Storage* out) {
  const float scale = block_scale(block);
  const std::byte* const codes = block + sizeof scale;
  if (format == Quantization::int8) {
#pragma omp simd
    for (int i = 0; i < quantized_block; ++i)
      out[i] = scale * unscaled_value(Quantization::int8, codes, i);
    return;
  }
  Storage values[16];
  for (int code = 0; code < 16; ++code) values[code] = scale * nf4_value(code);
  for (int i = 0; i < quantized_block / 2; ++i) {
    const int pair = int(codes[i]);
    out[2 * i] = values[pair >> 4];
    out[2 * i + 1] = values[pair & 15];
  }
}

#ifdef __x86_64__

#define BRUME_WITH_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

/// Whether the processor rounds to bf16 by an instruction, which counts numbers below the smallest
/// normal one as zero.
bool rounds_to_bfloat16() {
  static const bool rounds = (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) ==
                             dnnl_cpu_isa_avx512_core_bf16;
  return rounds;
}

using Words = std::uint32_t __attribute__((vector_size(4 * lanes)));
using Integers = std::int32_t __attribute__((vector_size(4 * lanes)));
using Halves = std::uint16_t __attribute__((vector_size(4 * lanes)));

constexpr __mmask16 all_lanes = 0xffff;

template <class Vector>
Vector loaded(const void* from) {
  Vector out;
  std::memcpy(&out, from, sizeof out);
  return out;
}

/// Looks up 32 codes at once among the block's 16 values, rounded.
BRUME_WITH_BF16 void dequantize_nf4(const std::byte* block, bfloat16* out) {
  alignas(64) static constexpr float unscaled[lanes] = {
      nf4_value(0),  nf4_value(1),  nf4_value(2),  nf4_value(3), nf4_value(4),  nf4_value(5),
      nf4_value(6),  nf4_value(7),  nf4_value(8),  nf4_value(9), nf4_value(10), nf4_value(11),
      nf4_value(12), nf4_value(13), nf4_value(14), nf4_value(15)};
  const auto scaled = __m512(block_scale(block) * loaded<Lanes>(unscaled));
  const auto values = Halves(_mm512_cvtne2ps_pbh(scaled, scaled));
  for (int half = 0; half < 2; ++half) {
    const auto codes = loaded<__m128i>(block + sizeof(float) + lanes * half);
    const auto pairs = Words(_mm512_maskz_cvtepu8_epi32(all_lanes, codes));
    // Of an index 5 bits count, and values repeat after 16.
    const Halves found = __builtin_shuffle(values, Halves(pairs >> 4 | pairs << 16));
    std::memcpy(out + 2 * lanes * half, &found, sizeof found);
  }
}

BRUME_WITH_BF16 void dequantize_int8(const std::byte* block, bfloat16* out) {
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

BRUME_WITH_BF16 void dequantize_by_vectors(Quantization format, const std::byte* blocks,
                                           std::int64_t count, bfloat16* out) {
  const int bytes = block_bytes(format);
  for (std::int64_t i = 0; i < count; ++i, out += quantized_block)
    format == Quantization::nf4 ? dequantize_nf4(blocks + i * bytes, out)
                                : dequantize_int8(blocks + i * bytes, out);
}

#undef BRUME_WITH_BF16

#else

bool rounds_to_bfloat16() { return false; }
void dequantize_by_vectors(Quantization, const std::byte*, std::int64_t, bfloat16*) {}

#endif

}  // namespace

template <class Storage>
void dequantize_blocks(Quantization format, const std::byte* blocks, std::int64_t count,
                       Storage* out) {
  if constexpr (std::is_same_v<Storage, bfloat16>)
    if (rounds_to_bfloat16()) return dequantize_by_vectors(format, blocks, count, out);
  const int bytes = block_bytes(format);
  for (std::int64_t i = 0; i < count; ++i)
    dequantize_one(format, blocks + i * bytes, out + i * quantized_block);
}

template <class Storage>
void dequantize(Quantization format, const std::byte* blocks, VectorOf<Storage> values) {
  const std::int64_t count = values.size() / quantized_block;
  promise(std::int64_t(values.size()) == count * quantized_block, "dequantize",
          "values must be whole blocks");
  Storage* const out = values.data();
  for_each_piece("dequantize", count, 256, [=](std::int64_t begin, std::int64_t end) {
    dequantize_blocks(format, blocks + begin * block_bytes(format), end - begin,
                      out + begin * quantized_block);
  });
}

template <class Storage>
void affine_forward(ConstMatrixOf<Storage> x, const QuantizedMatrix& w, ConstVectorOf<Storage> bias,
                    ConstMatrixOf<Storage> residual, MatrixOf<Storage> y) {
  promise(std::int64_t(x.extent(1)) == w.columns && std::int64_t(y.extent(1)) == w.rows &&
              x.extent(0) == y.extent(0),
          "affine_forward", "x [N, I], blocks of [O, I] and y [N, O] must fit");
  if (y.size() == 0) return;
  affine_in_passes<Storage>(bias, residual, y, [&](Write write) {
    gemm(std::int64_t(y.extent(0)), w.rows, w.columns,
         FactorOf<Storage>{x.data(), std::int64_t(x.stride(0))},
         QuantizedFactor{w.format, w.blocks}, write, y.data(), std::int64_t(y.stride(0)));
  });
}

template <class Storage>
bool takes_blocks(std::int64_t rows) {
  return gemm_takes_blocks<Storage>(rows);
}

template void dequantize_blocks(Quantization, const std::byte*, std::int64_t, float*);
template void dequantize_blocks(Quantization, const std::byte*, std::int64_t, bfloat16*);
template void dequantize_blocks(Quantization, const std::byte*, std::int64_t, float16*);

}  // namespace brume::kernels

#include "kernels/instances/quantized.hpp"
