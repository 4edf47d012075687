/// @file Queries, keys and values of latent attention as attention reads them.
#pragma once

#include "kernels/types.hpp"

namespace brume::kernels {

/// A row of parts has the queries [H, D], then for each head its still key and its value [H, D - R
/// + V], then the turned key [R] of all heads. A row of heads has queries, keys and values, [H, D]
/// each; a key begins with what positions turn, and zeros widen a value.
///
/// Keys and values stay latent in generation. A row of latent parts has the L features of which
/// they are made, then the turned key, then the queries [H, D]. A row of latent heads has queries
/// and one key and value, [H + 2, R + L]; all begin with what positions turn.
struct LatentShape {
  int heads = 0;      ///< H
  int head_dim = 0;   ///< D
  int turned = 0;     ///< R, features of a key that positions turn
  int value_dim = 0;  ///< V, at most D
  int rank = 0;       ///< L

  constexpr int still() const { return head_dim - turned; }
  constexpr int queries() const { return heads * head_dim; }
  constexpr int pair() const { return still() + value_dim; }  ///< a still key and a value
  constexpr int parts() const { return queries() + heads * pair() + turned; }
  constexpr int columns() const { return 3 * queries(); }
  constexpr int kept() const { return turned + rank; }  ///< features of a latent key
  constexpr int latent_parts() const { return kept() + queries(); }
  constexpr int latent_columns() const { return (heads + 2) * kept(); }
};

/// @param parts   [N, shape.parts()]
/// @param qkv     [N, shape.columns()]
/// @param turned  [N, R] the turned key, if parts have still keys and values alone and qkv keys and
///                values; an empty view: parts have all
template <class Storage = float>
void expand_keys(ConstMatrixOf<Storage> parts, const LatentShape& shape, MatrixOf<Storage> qkv,
                 ConstMatrixOf<Storage> turned = {});

/// The gradient of the turned key is the sum over heads, in their order, in fp32.
template <class Storage = float>
void expand_keys_backward(ConstMatrixOf<Storage> d_qkv, const LatentShape& shape,
                          MatrixOf<Storage> d_parts, MatrixOf<Storage> d_turned = {});

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

/// Queries that see latent keys, and the key and value of a token. With a still query q of a head,
/// whose still keys are W_k x, the query is q W_k, because q . (W_k x) = (q W_k) . x.
///
/// @param parts  [N, shape.latent_parts()]
/// @param kv_up  [H pair(), L] for each head W_k, then W_v
/// @param heads  [N, shape.latent_columns()]
/// @source       DeepSeek-AI 2024 (DeepSeek-V2), section 2.1
template <class Storage = float>
void absorb_queries(ConstMatrixOf<Storage> parts, ConstMatrixOf<Storage> kv_up,
                    const LatentShape& shape, MatrixOf<Storage> heads);

/// Values W_v x of attended latent features x.
///
/// @param attended  [N, H kept()], whose turned features mean nothing
/// @param values    [N, H V]
template <class Storage = float>
void expand_values(ConstMatrixOf<Storage> attended, ConstMatrixOf<Storage> kv_up,
                   const LatentShape& shape, MatrixOf<Storage> values);

/// Copies turned queries, the key and the value, as absorb_queries does.
template <class Storage = float>
void copy_latents(ConstMatrixOf<Storage> parts, const LatentShape& shape, MatrixOf<Storage> heads);

}  // namespace brume::kernels
