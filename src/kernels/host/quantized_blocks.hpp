/// @file Values of quantized blocks, as fast as the processor can.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/host/gemm.hpp"

namespace brume::kernels {

/// out[i] = value i of `count` blocks, which follow each other, rounded once
template <class Storage>
void dequantize_blocks(Quantization format, const std::byte* blocks, std::int64_t count,
                       Storage* out);

/// Rows [first, first + count) of a factor in blocks, of k values each.
template <class Storage>
void dequantize_rows(const QuantizedFactor& b, std::int64_t k, std::int64_t first,
                     std::int64_t count, Storage* out) {
  const std::int64_t blocks = k / quantized_block;
  dequantize_blocks(b.format, b.blocks + first * blocks * block_bytes(b.format), count * blocks,
                    out);
}

}  // namespace brume::kernels
