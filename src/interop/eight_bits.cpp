/// @file Tensors of 8-bit floats: their scales, and their values.
#include "eight_bits.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.hpp"
#include "base/float8.hpp"
#include "base/text.hpp"

namespace brume::interop {
namespace {

constexpr const char* codes_dtype = "F8_E4M3";
constexpr const char* powers_dtype = "F8_E8M0";  // of scales that are powers of two

/// Name of a tensor's scales; empty where it has none.
std::string scales_of(const std::string& tensor, const FileOf& files) {
  for (const char* part : eight_bit_parts)
    if (files(tensor + part) != nullptr) return tensor + part;
  return {};
}

/// Length of a block, of which `extent` values have `blocks`; 0: none fits.
std::int64_t block_length(std::int64_t extent, std::int64_t blocks, std::int64_t declared) {
  if (declared > 0 && ceil_div(extent, declared) == blocks) return declared;
  return blocks > 0 && extent % blocks == 0 ? extent / blocks : 0;
}

}  // namespace

std::string scaled_by(std::string_view name) {
  for (const std::string_view suffix : {".input_scale", ".activation_scale"})
    if (name.ends_with(suffix))
      return std::string(name.substr(0, name.size() - suffix.size())) + ".weight";
  return {};
}

bool EightBitTensor::is_one(const std::string& tensor, const FileOf& files) {
  const TensorFile* file = files(tensor);
  return file != nullptr && file->tensors().at(tensor).dtype == codes_dtype &&
         !scales_of(tensor, files).empty();
}

EightBitTensor::EightBitTensor(const std::string& tensor, const FileOf& files, BlockShape declared)
    : tensor_(tensor),
      scales_name_(scales_of(tensor, files)),
      codes_(files(tensor_)),
      scales_file_(files(scales_name_)),
      shape_(codes_->tensors().at(tensor).shape) {
  if (!shape_.empty()) columns_ = shape_.back();
  if (shape_.size() > 1) rows_ = shape_[shape_.size() - 2];
  find_grid(scales_file_->tensors().at(scales_name_), declared);
  read_scales();
}

/// Finds how many scales a matrix has, and their blocks.
void EightBitTensor::find_grid(const TensorEntry& scales, BlockShape declared) {
  const std::vector<std::int64_t>& grid = scales.shape;
  bool fits = true;
  if (shape_.size() >= 2 && grid.size() == shape_.size()) {
    scale_rows_ = grid[grid.size() - 2], scale_columns_ = grid.back();
    fits = std::equal(shape_.begin(), shape_.end() - 2, grid.begin());
  } else if (shape_.size() == 2 && grid.size() == 1 && grid[0] != 1) {
    scale_rows_ = grid[0], fits = grid[0] == rows_;
  } else {
    fits = scales.elements == 1 && shape_.size() <= 2;
  }
  block_ = {block_length(rows_, scale_rows_, declared.first),
            block_length(columns_, scale_columns_, declared.second)};
  require(
      fits && block_.first > 0 && block_.second > 0, Failure::input,
      "{}: tensor {} has shape [{}] in 8 bits, but its scales {} have shape [{}]: there must be "
      "one scale, one for each row, or one for each block of {} x {} values, as config.json's "
      "'weight_block_size' says or by default",
      codes_->name(), shown(tensor_), fmt::join(shape_, ", "), shown(scales_name_),
      fmt::join(grid, ", "), declared.first, declared.second);
}

void EightBitTensor::read_scales() {
  const TensorEntry& entry = scales_file_->tensors().at(scales_name_);
  scales_.resize(std::size_t(entry.elements));
  if (entry.dtype != powers_dtype) return scales_file_->read(scales_name_, 0, scales_);
  const std::vector<std::uint8_t> exponents =
      bytes_of(*scales_file_, scales_name_, 0, entry.elements);
  std::ranges::transform(exponents, scales_.begin(),
                         [](int exponent) { return std::ldexp(1.0f, exponent - 127); });
}

void EightBitTensor::read(std::int64_t first, std::span<float> values) const {
  static const auto widened = [] {
    std::array<float, 256> all{};
    for (std::size_t code = 0; code < all.size(); ++code)
      all[code] = float(float8_e4m3::from_bits(std::uint8_t(code)));
    return all;
  }();
  decode_parts(first, values, [&](std::int64_t begin, std::span<float> part) {
    const std::int64_t count = std::ssize(part);
    const std::vector<std::uint8_t> codes = bytes_of(*codes_, tensor_, begin, begin + count);
    for (std::int64_t i = 0; i < count;) {  // to the end of a block's row
      const std::int64_t row = (begin + i) / columns_, column = (begin + i) % columns_;
      const std::int64_t scale_row = row / rows_ * scale_rows_ + row % rows_ / block_.first;
      const std::int64_t of_row = column / block_.second;
      const float scale = scales_[std::size_t(scale_row * scale_columns_ + of_row)];
      const std::int64_t left = std::min((of_row + 1) * block_.second, columns_) - column;
      for (const std::int64_t end = std::min(count, i + left); i < end; ++i)
        part[i] = widened[codes[i]] * scale;
    }
  });
}

}  // namespace brume::interop
