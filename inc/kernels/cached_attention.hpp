/// @file Attention of a few tokens of each of many sequences to all tokens before them, whose keys
/// and values are kept in blocks.
#pragma once

#include <cstdint>

#include "kernels/attention.hpp"

namespace brume::kernels {

/// Keys and values of a layer's tokens, in blocks that sequences take as they grow.
template <class Storage>
struct KeyCache {
  Storage* data = nullptr;  ///< [blocks, 2, K, block_tokens, D], keys, then values
  int block_tokens = 0;
  int blocks_per_sequence = 0;  ///< most blocks that a sequence may take
  /// [N] the sequence of each token; below 0: none, and the token's output is 0
  const std::int32_t* sequences = nullptr;
  /// [sequences, blocks_per_sequence] blocks of each sequence, in the order of its tokens
  const std::int32_t* tables = nullptr;

  /// The features of a token's key head, or of its value.
  constexpr Storage* at(const AttentionShape& shape, int sequence, int place, bool value,
                        int key_head) const {
    const std::int64_t block =
        tables[std::int64_t(sequence) * blocks_per_sequence + place / block_tokens];
    return data + (((block * 2 + int(value)) * shape.keys() + key_head) * block_tokens +
                   place % block_tokens) *
                      shape.head_dim;
  }
};

/// Keeps the keys and values of N tokens, then attends: token n of sequence s at place p gets
///
///   o[n,h,:] = sum_{f(p) <= m <= p} softmax_m(q[n,h,:] . k[s,m,h,:] / sqrt(D)) v[s,m,h,:]
///
/// with f(p) = max(0, p - W + 1) where there is a window. Scale, cap and shared key heads are those
/// of `attention_forward`. A sequence may have several tokens; the keys of all places before them
/// must be kept already, or be among the N.
///
/// @param shape  its documents give each token's place; batch and documents' begins mean nothing
///               else here
/// @param qkv    [N, (H + 2 K) * D]
/// @param o      [N, H * D]
/// @param sinks  as in `attention_forward`
/// @source       Kwon et al. 2023 (PagedAttention)
template <class Storage = float>
void cached_attention(const AttentionShape& shape, ConstMatrixOf<Storage> qkv,
                      const KeyCache<Storage>& cache, MatrixOf<Storage> o,
                      ConstVectorOf<Storage> sinks = {});

}  // namespace brume::kernels
