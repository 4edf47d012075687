#include "kernels/host/quantized_blocks.hpp"

#include <type_traits>

#include <oneapi/dnnl/dnnl.h>

#include "kernels/host/quantized_vectors.hpp"

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

/// Whether the processor rounds to bf16 by an instruction, which counts numbers below the smallest
/// normal one as zero.
bool rounds_to_bfloat16() {
  static const bool rounds = (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) ==
                             dnnl_cpu_isa_avx512_core_bf16;
  return rounds;
}

#ifdef __x86_64__

BRUME_WITH_BF16 void dequantize_by_vectors(Quantization format, const std::byte* blocks,
                                           std::int64_t count, bfloat16* out) {
  const int bytes = block_bytes(format);
  for (std::int64_t i = 0; i < count; ++i, out += quantized_block)
    format == Quantization::nf4 ? dequantize_nf4(blocks + i * bytes, out)
                                : dequantize_int8(blocks + i * bytes, out);
}

#else

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

template void dequantize_blocks(Quantization, const std::byte*, std::int64_t, float*);
template void dequantize_blocks(Quantization, const std::byte*, std::int64_t, bfloat16*);
template void dequantize_blocks(Quantization, const std::byte*, std::int64_t, float16*);

}  // namespace brume::kernels
