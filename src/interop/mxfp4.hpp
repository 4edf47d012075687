/// @file Tensors of MXFP4: blocks of 4-bit floats that share a power of two.
#pragma once

#include "coded_tensor.hpp"

namespace brume::interop {

inline constexpr const char *mxfp4_blocks = "_blocks", *mxfp4_scales = "_scales";
inline constexpr const char* mxfp4_parts[] = {mxfp4_blocks, mxfp4_scales};

/// A tensor W [..., C] in blocks of 32 values:
///
///   W_blocks  U8 [..., C / 32, 16] two values per byte, the first in its low bits: a sign, then
///             0, 0.5, 1, 1.5, 2, 3, 4 or 6
///   W_scales  U8 [..., C / 32] exponents of their powers of two, plus 127
///
/// bf16 holds each value exactly.
/// @source  OCP Microscaling Formats 1.0; transformers 5, integrations/mxfp4.py
class Mxfp4Tensor : public CodedTensor {
 public:
  static bool is_one(const std::string& tensor, const FileOf& files);
  /// @throws Error(input) where blocks and scales do not fit each other
  Mxfp4Tensor(const std::string& tensor, const FileOf& files);

  const TensorFile& file() const override { return *blocks_; }
  const std::vector<std::int64_t>& shape() const override { return shape_; }
  Dtype dtype() const override { return Dtype::bf16; }
  void read(std::int64_t first, std::span<float> values) const override;

 private:
  std::string tensor_;
  const TensorFile *blocks_, *scales_;
  std::vector<std::int64_t> shape_;
};

}  // namespace brume::interop
