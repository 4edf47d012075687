/// @file Attention of bf16 by the processor's tile registers, for one head at a time.
#pragma once

#include "kernels/attention.hpp"
#include "kernels/host/attention_tile.hpp"

namespace brume::kernels {

/// The gradient of one output, and the arrays that its forward left.
struct HeadOutput {
  const bfloat16* o;
  std::int64_t o_stride;
  const bfloat16* d_o;
  std::int64_t d_o_stride;
  const float* lse;
};

/// Forward of one head. Weights are rounded to bf16 before they multiply values; sums are fp32.
///
/// @param sink  the head's; null: none
/// @param o     rows of the output, `stride` elements apart
/// @param lse   [T]
/// @return      false, with nothing to rely on in `o`, if an operand is not finite: a tile cannot
///              leave out the product of a hidden key
bool forward_by_tiles(const AttentionShape& shape, const Head<const bfloat16>& in,
                      const float* sink, bfloat16* o, std::int64_t stride, float* lse);

/// Backward of a key head and its query heads. Weights and gradients of scores are rounded to bf16.
class TiledBackward {
 public:
  /// Keys and values of `in` serve all heads that follow.
  TiledBackward(const AttentionShape& shape, const Head<const bfloat16>& in);

  /// Writes the gradient of the head's queries and adds to the gradients of keys and values.
  ///
  /// @return  false, with nothing to rely on, if an operand is not finite
  bool add_head(const Head<const bfloat16>& in, const HeadOutput& output, bfloat16* d_q,
                std::int64_t stride);
  /// Writes the gradients of keys and values.
  void store(const Head<bfloat16>& grad) const;

 private:
  struct Arrays;
  AttentionShape shape_;
  Arrays& arrays_;
  bool finite_;
};

}  // namespace brume::kernels
