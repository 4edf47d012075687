/// @file Products of latent attention in generation: those of kernels/matmul.hpp for one head after
/// another.
#include "kernels/latent.hpp"
#include "kernels/matmul.hpp"
#include "kernels/promises.hpp"

namespace brume::kernels {
namespace {

/// Rows and columns of a part of a matrix.
template <class Element>
MatrixView<Element> part(const MatrixView<Element>& matrix, int row, int rows, int column,
                         int columns) {
  return {matrix.data() + std::int64_t(row) * std::int64_t(matrix.stride(0)) + column,
          std::size_t(rows), std::size_t(columns), matrix.stride(0)};
}

template <class Matrix>
void promise_kv_up(const char* kernel, const Matrix& kv_up, const LatentShape& shape) {
  promise(kv_up.extent_int(0) == shape.heads * shape.pair() && kv_up.extent_int(1) == shape.rank,
          kernel, "kv_up must have the rows of all heads' keys and values, and the shape's rank");
}

}  // namespace

template <class Storage>
void absorb_queries(ConstMatrixOf<Storage> parts, ConstMatrixOf<Storage> kv_up,
                    const LatentShape& shape, MatrixOf<Storage> heads) {
  promise_kv_up("absorb_queries", kv_up, shape);
  copy_latents<Storage>(parts, shape, heads);
  const int tokens = parts.extent_int(0);
  for (int h = 0; h < shape.heads; ++h)
    linear_backward_input<Storage>(
        part(parts, 0, tokens, shape.kept() + h * shape.head_dim + shape.turned, shape.still()),
        part(kv_up, h * shape.pair(), shape.still(), 0, shape.rank), Write::replace,
        part(heads, 0, tokens, h * shape.kept() + shape.turned, shape.rank));
}

template <class Storage>
void expand_values(ConstMatrixOf<Storage> attended, ConstMatrixOf<Storage> kv_up,
                   const LatentShape& shape, MatrixOf<Storage> values) {
  promise_kv_up("expand_values", kv_up, shape);
  promise_latent("expand_values", attended, shape.heads * shape.kept(), values,
                 shape.heads * shape.value_dim);
  const int tokens = attended.extent_int(0);
  for (int h = 0; h < shape.heads; ++h)
    linear_forward<Storage>(
        part(attended, 0, tokens, h * shape.kept() + shape.turned, shape.rank),
        part(kv_up, h * shape.pair() + shape.still(), shape.value_dim, 0, shape.rank),
        Write::replace, part(values, 0, tokens, h * shape.value_dim, shape.value_dim));
}

template void absorb_queries<float>(ConstMatrixOf<float>, ConstMatrixOf<float>, const LatentShape&,
                                    MatrixOf<float>);
template void absorb_queries<bfloat16>(ConstMatrixOf<bfloat16>, ConstMatrixOf<bfloat16>,
                                       const LatentShape&, MatrixOf<bfloat16>);
template void absorb_queries<float16>(ConstMatrixOf<float16>, ConstMatrixOf<float16>,
                                      const LatentShape&, MatrixOf<float16>);
template void expand_values<float>(ConstMatrixOf<float>, ConstMatrixOf<float>, const LatentShape&,
                                   MatrixOf<float>);
template void expand_values<bfloat16>(ConstMatrixOf<bfloat16>, ConstMatrixOf<bfloat16>,
                                      const LatentShape&, MatrixOf<bfloat16>);
template void expand_values<float16>(ConstMatrixOf<float16>, ConstMatrixOf<float16>,
                                     const LatentShape&, MatrixOf<float16>);

}  // namespace brume::kernels
