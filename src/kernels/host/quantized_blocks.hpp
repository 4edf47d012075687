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

/// The blocks of rows from `first` on, of k values each.
inline const std::byte* rows_of(const QuantizedFactor& b, std::int64_t k, std::int64_t first) {
  return b.blocks + first * (k / quantized_block) * block_bytes(b.format);
}

}  // namespace brume::kernels
