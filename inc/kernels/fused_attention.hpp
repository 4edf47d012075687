/// @file Attention by the fused kernels of NVIDIA's cuDNN, which multiply on tensor cores: where
/// this build has cuDNN and that has a kernel for the call. Who asks has kernels of its own.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/attention.hpp"

namespace brume::kernels {

/// Operands of attention as kernels/attention.hpp has them: 16-bit elements in device memory.
struct FusedOperands {
  struct Rows {
    void* data = nullptr;
    std::int64_t stride = 0;  ///< elements from one row to the next
  };
  bool bf16 = true;  ///< else fp16
  Rows qkv, o;
  float* lse = nullptr;
  Rows d_o, dqkv;  ///< rows of a backward
};

enum class Pass { forward, backward };

#ifdef BRUME_CUDNN
/// Puts the pass into the calling thread's stream, where q, k and v stay as they lie. A backward
/// gives the same bits each time: cuDNN then keeps 2 T^2 bytes a head beside the operands, so it is
/// done in calls of fewer sequences or key heads. Kernels are looked up once per thread and shape.
///
/// @return  whether cuDNN has a kernel for it; where not, a line of the log has said why
/// @throws Error(resource) when cuDNN fails
bool fused_attention(Pass pass, const AttentionShape& shape, const FusedOperands& operands);

/// The number of cuDNN's calls that the pass takes; 0 without a kernel.
int fused_attention_calls(Pass pass, const AttentionShape& shape, const FusedOperands& operands);
#else
inline bool fused_attention(Pass, const AttentionShape&, const FusedOperands&) { return false; }
#endif

template <class View>
FusedOperands::Rows fused_rows(const View& matrix) {
  using Element = std::remove_cvref_t<decltype(matrix(0, 0))>;
  return {const_cast<Element*>(matrix.data()), std::int64_t(matrix.stride(0))};
}

/// The operands of a forward; of a backward d_o and dqkv come to them.
template <class Storage>
FusedOperands fused_operands(const ConstMatrixOf<Storage>& qkv, const ConstMatrixOf<Storage>& o,
                             const ConstVector& lse) {
  return {.bf16 = std::is_same_v<Storage, bfloat16>,
          .qkv = fused_rows(qkv),
          .o = fused_rows(o),
          .lse = const_cast<float*>(lse.data()),
          .d_o = {},
          .dqkv = {}};
}

}  // namespace brume::kernels
