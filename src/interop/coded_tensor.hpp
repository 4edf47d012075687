/// @file Tensors of safetensors files whose values are made of codes, in all formats that are read.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "interop/safetensors.hpp"

namespace brume::interop {

/// Rows and columns of a block of values that share a scale.
using BlockShape = std::pair<std::int64_t, std::int64_t>;

/// The file that holds a tensor of this name; null: none does.
using FileOf = std::function<const TensorFile*(const std::string& tensor)>;

/// Whether a tensor is a part of the codes' tensor `tensor`, by its name.
bool is_part_of_codes(std::string_view name, std::string_view tensor);

/// A tensor whose values are made of codes.
class CodedTensor {
 public:
  virtual ~CodedTensor() = default;
  virtual const TensorFile& file() const = 0;  ///< with the codes
  virtual const std::vector<std::int64_t>& shape() const = 0;
  virtual Dtype dtype() const = 0;  ///< of the values
  /// Values from element `first` on. @throws Error(input) when a file cannot be read
  virtual void read(std::int64_t first, std::span<float> values) const = 0;
};

/// @param declared  by config.json, for matrices in 8 bits
/// @return null if the files have no codes of this name
/// @throws Error(input) where parts of the codes do not fit each other
std::unique_ptr<CodedTensor> coded_tensor(const std::string& tensor, const FileOf& files,
                                          BlockShape declared);

}  // namespace brume::interop
