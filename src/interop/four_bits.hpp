/// @file Tensors of 4-bit codes, as bitsandbytes stores them in safetensors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "coded_tensor.hpp"

namespace brume::interop {

inline constexpr const char* four_bit_parts[] = {".absmax",
                                                 ".quant_map",
                                                 ".nested_absmax",
                                                 ".nested_quant_map",
                                                 ".quant_state.bitsandbytes__nf4",
                                                 ".quant_state.bitsandbytes__fp4"};

/// A tensor W in codes:
///
///   W                                 [N / 2] two codes per byte, the first in its high bits
///   W.quant_map                       [16] values of codes
///   W.absmax                          [N / blocksize] scales in F32; or, nested, codes in U8
///   W.nested_quant_map                [256] their values
///   W.nested_absmax                   scales of them, one per nested_blocksize
///   W.quant_state.bitsandbytes__nf4   JSON: shape, dtype, blocksize, nested_offset, ...; or __fp4
///
///   value = quant_map[code] scale
///   nested: scale = nested_quant_map[code of scale] nested_absmax + nested_offset
///
/// @source  bitsandbytes 0.50.2, functional.py (QuantState, dequantize_4bit)
class FourBitTensor : public CodedTensor {
 public:
  static bool is_one(const std::string& tensor, const FileOf& files);
  /// @throws Error(input) where its parts do not fit each other
  FourBitTensor(std::string tensor, const FileOf& files);

  const TensorFile& file() const override { return *codes_.file; }
  const std::vector<std::int64_t>& shape() const override { return shape_; }
  Dtype dtype() const override { return dtype_; }  ///< of the values before they were quantized
  void read(std::int64_t first, std::span<float> values) const override;

 private:
  struct Part {
    const TensorFile* file = nullptr;
    std::string name;
  };
  Part part(const std::string& suffix, const char* dtype, std::int64_t elements,
            const FileOf& files) const;
  std::vector<float> floats(const Part& part, std::int64_t first, std::int64_t count) const;
  std::vector<float> scales(std::int64_t first, std::int64_t count) const;

  std::string tensor_;
  std::vector<std::int64_t> shape_;
  std::int64_t elements_ = 1, block_ = 0, nested_block_ = 0;
  float nested_offset_ = 0.0f;
  Dtype dtype_ = Dtype::f32;
  Part codes_, absmax_, nested_absmax_;
  std::vector<float> values_, nested_values_;  ///< of codes
};

}  // namespace brume::interop
