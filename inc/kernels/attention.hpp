/// @file Causal self-attention by blocks with streaming softmax: the s x s scores are never stored.
#pragma once

#include <cstddef>

#include "kernels/types.hpp"

namespace brume::kernels {

/// Sizes of one attention call; N = batch * seq_len tokens.
struct AttentionShape {
  int batch;     ///< sequences
  int seq_len;   ///< tokens a sequence
  int heads;     ///< heads on this rank
  int head_dim;  ///< features a head, D
};

/// Scratch that one forward or backward call needs, 128 KiB; the caller gives it from its arena.
std::size_t attention_workspace_bytes(const AttentionShape& shape);

/// o[n,h,:] = sum_{m <= n} softmax_m(q[n,h,:] . k[m,h,:] / sqrt(D)) v[m,h,:]  within each sequence
///
/// @param qkv        [N, 3 * H * D] q, k and v side by side, heads in order in each
/// @param workspace  attention_workspace_bytes(shape) / 4 floats
/// @param o          [N, H * D]
/// @param lse        [batch, H, T] flat: log of the sum of the exponentials, kept for backward
/// @source           Dao 2023 (FlashAttention-2), algorithms 1 and 2
void attention_forward(const AttentionShape& shape, ConstMatrix qkv, Vector workspace, Matrix o,
                       Vector lse);

/// Gradient of the above; dqkv [N, 3 * H * D] is written, not accumulated.
void attention_backward(const AttentionShape& shape, ConstMatrix qkv, ConstMatrix o,
                        ConstVector lse, ConstMatrix d_o, Vector workspace, Matrix dqkv);

}  // namespace brume::kernels
