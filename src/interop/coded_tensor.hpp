/// @file Tensors of safetensors files whose values are made of codes, in all formats that are read.
#pragma once

#include <algorithm>
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

/// Calls decode(begin, part) for each part of `values` whose codes are read at once; `begin` is the
/// part's first element, and `first` that of all values.
template <class Decode>
void decode_parts(std::int64_t first, std::span<float> values, Decode&& decode) {
  constexpr std::size_t largest = std::size_t{1} << 20;
  for (; !values.empty(); values = values.subspan(std::min(largest, values.size()))) {
    const std::span<float> part = values.first(std::min(largest, values.size()));
    decode(first, part);
    first += std::ssize(part);
  }
}

/// Bytes [first, end) of a tensor.
std::vector<std::uint8_t> bytes_of(const TensorFile& file, const std::string& tensor,
                                   std::int64_t first, std::int64_t end);

/// @param declared  by config.json, for matrices in 8 bits
/// @return null if the files have no codes of this name
/// @throws Error(input) where parts of the codes do not fit each other
std::unique_ptr<CodedTensor> coded_tensor(const std::string& tensor, const FileOf& files,
                                          BlockShape declared);

}  // namespace brume::interop
