/// @file Tensors of 8-bit floats that share scales by rows, by blocks, or all.
#pragma once

#include "coded_tensor.hpp"

namespace brume::interop {

inline constexpr const char* eight_bit_parts[] = {"_scale_inv", "_scale"};

/// A tensor W [..., R, C] of F8_E4M3 with scales in F32, BF16, F16 or F8_E8M0:
///
///   W_scale_inv or W_scale  [..., r, c]  a scale for each block of values: value = code scale
///                           [R]          one for each row
///                           [1] or []    one for all
///
/// Blocks are as config.json declares them if r and c are their numbers, and the last ones may be
/// cut: 576 rows have 5 blocks of 128. Otherwise r and c divide R and C.
///
/// @source  transformers 5, integrations/finegrained_fp8.py (Fp8Dequantize); DeepSeek-V3's
///          kernel.py (weight_dequant); compressed-tensors 0.13 (naive-quantized,
///          float-quantized)
class EightBitTensor : public CodedTensor {
 public:
  static bool is_one(const std::string& tensor, const FileOf& files);
  /// @throws Error(input) where codes and scales do not fit each other
  EightBitTensor(const std::string& tensor, const FileOf& files, BlockShape declared);

  const TensorFile& file() const override { return *codes_; }
  const std::vector<std::int64_t>& shape() const override { return shape_; }
  /// The products have more bits, as fp32 has them.
  Dtype dtype() const override { return Dtype::bf16; }
  void read(std::int64_t first, std::span<float> values) const override;

 private:
  void find_grid(const TensorEntry& scales, BlockShape declared);
  void read_scales();

  std::string tensor_, scales_name_;
  const TensorFile *codes_, *scales_file_;
  std::vector<std::int64_t> shape_;
  std::int64_t rows_ = 1, columns_ = 1;
  std::int64_t scale_rows_ = 1, scale_columns_ = 1;  ///< scales of a matrix
  BlockShape block_;
  std::vector<float> scales_;
};

/// The tensor of which `name` is the scale of its inputs, which products in 8 bits need only;
/// empty where it is none.
std::string scaled_by(std::string_view name);

}  // namespace brume::interop
