/// @file Causal self-attention by blocks with streaming softmax: the s x s scores are never stored.
#pragma once

#include <cmath>

#include "kernels/types.hpp"

namespace brume::kernels {

/// Sizes of one attention call; N = batch * queries() tokens.
struct AttentionShape {
  int batch;                 ///< sequences
  int seq_len;               ///< tokens a sequence
  int heads;                 ///< query heads on this rank, H
  int head_dim;              ///< features a head, D
  int kv_heads = 0;          ///< key and value heads on this rank, K; 0: as many as query heads
  int group = 1;             ///< query heads that share one of them
  int first_head = 0;        ///< first query head, counted from the first that shares key head 0
  int window = 0;            ///< keys that a query sees, its own included; 0: all up to its own
  float scale = 0.0f;        ///< factor of scores; 0: 1 / sqrt(D)
  float cap = 0.0f;          ///< c, scores become c tanh(score / c); 0: they stay
  Documents documents = {};  ///< a query sees no key before its document's
  Zigzag zigzag = {};        ///< queries are one rank's of those that share the one sequence

  constexpr int keys() const { return kv_heads == 0 ? heads : kv_heads; }
  /// Queries of a sequence.
  constexpr int queries() const { return seq_len / zigzag.ranks; }
  /// Neighbouring tokens that lie side by side.
  constexpr int run() const { return zigzag.cuts() ? zigzag.chunk : seq_len; }
  /// The end of a token's run.
  constexpr int run_end(int position) const { return (position / run() + 1) * run(); }
  /// The first key that a query of a sequence sees. It never falls from one query to the next.
  constexpr int first_key(int sequence, int query) const {
    const int of_window = window > 0 && query >= window ? query - window + 1 : 0;
    const int begin = documents.begin_of(std::int64_t(sequence) * seq_len + query);
    return begin > of_window ? begin : of_window;
  }
  float score_scale() const { return scale > 0.0f ? scale : 1.0f / std::sqrt(float(head_dim)); }
  constexpr int key_head(int head) const { return (first_head + head) / group; }
  /// Features of q, k and v, which lie side by side.
  constexpr int width() const { return (heads + 2 * keys()) * head_dim; }
};

/// o[n,h,:] = sum_{f(n) <= m <= n} softmax_m(q[n,h,:] . k[m,h,:] / sqrt(D)) v[m,h,:]  within each
/// sequence, f = first_key; with another scale, or capped scores, where the shape says so
///
/// Key head (first_head + h) / group serves query head h, if there are fewer key heads.
///
/// @param qkv        [N, (H + 2 K) * D] q, k and v side by side, heads in order in each; with
///                   `keys` q alone will do: [N, H * D]
/// @param o          [N, H * D]
/// @param keys       [batch * T, 2 K * D] k and v of all ranks in rank order, if the shape's zigzag
///                   cuts; otherwise an empty view: those of `qkv`
/// @param lse        [batch, H, queries()] flat: log of the sum of the exponentials, kept for
/// backward
/// @param sinks      [H] one more score of each query of a head in the softmax, without a value; an
///                   empty view: none
/// @source           Dao 2023 (FlashAttention-2), algorithms 1 and 2; shared key heads: Ainslie et
///                   al. 2023; sinks: Xiao et al. 2023, as GPT-OSS trains them
template <class Storage = float>
void attention_forward(const AttentionShape& shape, ConstMatrixOf<Storage> qkv, MatrixOf<Storage> o,
                       Vector lse, ConstVectorOf<Storage> sinks = {},
                       ConstMatrixOf<Storage> keys = {});

/// Gradient of the above; dqkv [N, (H + 2 K) * D] is written, not accumulated. A key head's
/// gradient is the sum over its query heads, in their order. With `keys`, those of k and v go to
/// d_keys and leave dqkv's columns as they are.
template <class Storage = float>
void attention_backward(const AttentionShape& shape, ConstMatrixOf<Storage> qkv,
                        ConstMatrixOf<Storage> o, ConstVector lse, ConstMatrixOf<Storage> d_o,
                        MatrixOf<Storage> dqkv, ConstMatrixOf<Storage> keys = {},
                        MatrixOf<Storage> d_keys = {});

/// Gradient of the sinks, whose weights are e^(sink - lse); that of queries, keys and values is the
/// above, because lse has the sinks.
///
///   dsinks[h] = - sum_n e^(sinks[h] - lse[n,h]) sum_d do[n,h,d] o[n,h,d]  (+ dsinks[h] when
///   accumulating)
template <class Storage = float>
void attention_backward_sinks(const AttentionShape& shape, ConstVectorOf<Storage> sinks,
                              ConstMatrixOf<Storage> o, ConstVector lse, ConstMatrixOf<Storage> d_o,
                              Write write, Vector d_sinks);

}  // namespace brume::kernels
