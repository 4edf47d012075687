/// @file Matrices in blocks of 4 or 8 bits.
#pragma once

#include <cstddef>

#include "base/quantization.hpp"
#include "kernels/types.hpp"

namespace brume::kernels {

/// values[i] = value i of the blocks, rounded once
///
/// @param blocks  one after another, a block per quantized_block values
template <class Storage = float>
void dequantize(Quantization format, const std::byte* blocks, VectorOf<Storage> values);

/// A matrix [R, C], C a multiple of quantized_block, whose rows are blocks.
struct QuantizedMatrix {
  Quantization format = Quantization::none;
  const std::byte* blocks = nullptr;
  std::int64_t rows = 0, columns = 0;
};

/// y[n,o] = residual[n,o] + sum_i x[n,i] w[o,i] + bias[o], as affine_forward of the rounded values,
/// without a copy of them in memory
///
/// @param x  [N, I] of few rows, for which takes_blocks<Storage>(N) holds
template <class Storage = float>
void affine_forward(ConstMatrixOf<Storage> x, const QuantizedMatrix& w, ConstVectorOf<Storage> bias,
                    ConstMatrixOf<Storage> residual, MatrixOf<Storage> y);

/// Whether products of `rows` rows read a matrix in blocks: on hosts, if reading it limits them.
template <class Storage = float>
bool takes_blocks(std::int64_t rows);

}  // namespace brume::kernels
