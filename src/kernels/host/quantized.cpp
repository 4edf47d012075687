#include "kernels/quantized.hpp"

#include "kernels/affine.hpp"
#include "kernels/host/loops.hpp"
#include "kernels/host/quantized_blocks.hpp"

namespace brume::kernels {

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

}  // namespace brume::kernels

#include "kernels/instances/quantized.hpp"
