/// @file Tensors of MXFP4: blocks and scales, and their values.
#include "mxfp4.hpp"

#include <fmt/ranges.h>

#include <cmath>

#include "base/numbers.hpp"
#include "base/text.hpp"

namespace brume::interop {
namespace {

constexpr std::int64_t block_values = 32, block_bytes = block_values / 2;
constexpr float values_of_codes[] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                     -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

}  // namespace

bool Mxfp4Tensor::is_one(const std::string& tensor, const FileOf& files) {
  return files(tensor + mxfp4_blocks) != nullptr;
}

Mxfp4Tensor::Mxfp4Tensor(const std::string& tensor, const FileOf& files)
    : tensor_(tensor),
      blocks_(files(tensor + mxfp4_blocks)),
      scales_(files(tensor + mxfp4_scales)) {
  require(scales_ != nullptr, Failure::input, "{}: tensor {} lacks its part {}", blocks_->name(),
          shown(tensor), shown(tensor + mxfp4_scales));
  const TensorEntry& blocks = blocks_->tensors().at(tensor + mxfp4_blocks);
  const TensorEntry& scales = scales_->tensors().at(tensor + mxfp4_scales);
  shape_ = blocks.shape;
  const bool whole = shape_.size() > 2 && shape_.back() == block_bytes;
  if (whole) shape_.pop_back();
  require(whole && blocks.dtype == "U8" && scales.dtype == "U8" && scales.shape == shape_,
          Failure::input,
          "{}: tensor {} of MXFP4 weights must be U8 [..., {}] with scales U8 [...], found {} [{}] "
          "with {} [{}]",
          blocks_->name(), shown(tensor + mxfp4_blocks), block_bytes, blocks.dtype,
          fmt::join(blocks.shape, ", "), scales.dtype, fmt::join(scales.shape, ", "));
  shape_.back() *= block_values;
}

void Mxfp4Tensor::read(std::int64_t first, std::span<float> values) const {
  decode_parts(first, values, [&](std::int64_t begin, std::span<float> part) {
    const std::int64_t end = begin + std::ssize(part);
    const std::int64_t first_byte = begin / 2, first_block = begin / block_values;
    const std::vector<std::uint8_t> codes =
        bytes_of(*blocks_, tensor_ + mxfp4_blocks, first_byte, ceil_div(end, std::int64_t{2}));
    const std::vector<std::uint8_t> exponents =
        bytes_of(*scales_, tensor_ + mxfp4_scales, first_block, ceil_div(end, block_values));
    for (std::int64_t at = begin; at < end; ++at) {
      const int pair = codes[std::size_t(at / 2 - first_byte)];
      const int exponent = exponents[std::size_t(at / block_values - first_block)];
      part[std::size_t(at - begin)] =
          std::ldexp(values_of_codes[at % 2 == 0 ? pair & 15 : pair >> 4], exponent - 127);
    }
  });
}

}  // namespace brume::interop
