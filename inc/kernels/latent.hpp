/// @file Queries, keys and values of latent attention as attention reads them.
#pragma once

#include "kernels/types.hpp"

namespace brume::kernels {

/// A row of parts has the queries [H, D], then for each head its still key and its value [H, D - R
/// + V], then the turned key [R] of all heads. A row of heads has queries, keys and values, [H, D]
/// each; a key begins with what positions turn, and zeros widen a value.
struct LatentShape {
  int heads = 0;      ///< H
  int head_dim = 0;   ///< D
  int turned = 0;     ///< R, features of a key that positions turn
  int value_dim = 0;  ///< V, at most D

  constexpr int still() const { return head_dim - turned; }
  constexpr int queries() const { return heads * head_dim; }
  constexpr int pair() const { return still() + value_dim; }  ///< a still key and a value
  constexpr int parts() const { return queries() + heads * pair() + turned; }
  constexpr int columns() const { return 3 * queries(); }
};

/// @param parts  [N, shape.parts()]
/// @param qkv    [N, shape.columns()]
template <class Storage = float>
void expand_keys(ConstMatrixOf<Storage> parts, const LatentShape& shape, MatrixOf<Storage> qkv);

/// The gradient of the turned key is the sum over heads, in their order, in fp32.
template <class Storage = float>
void expand_keys_backward(ConstMatrixOf<Storage> d_qkv, const LatentShape& shape,
                          MatrixOf<Storage> d_parts);

/// The first V of every D columns.
///
/// @param wide    [N, H D]
/// @param narrow  [N, H V]
template <class Storage = float>
void narrow_values(ConstMatrixOf<Storage> wide, const LatentShape& shape, MatrixOf<Storage> narrow);

/// ... with zeros behind them.
template <class Storage = float>
void narrow_values_backward(ConstMatrixOf<Storage> d_narrow, const LatentShape& shape,
                            MatrixOf<Storage> d_wide);

}  // namespace brume::kernels
