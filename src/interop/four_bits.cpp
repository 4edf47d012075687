/// @file Tensors of 4-bit codes, as bitsandbytes stores them: their parts, and their values.
#include "four_bits.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/numbers.hpp"
#include "base/text.hpp"
#include "deck/json.hpp"
#include "json_reader.hpp"

namespace brume::interop {
namespace {

constexpr std::int64_t most_state_bytes = 1 << 16;

const char* state_of(const std::string& tensor, const FileOf& files) {
  for (const char* part : four_bit_parts)
    if (std::string_view(part).starts_with(".quant_state") && files(tensor + part) != nullptr)
      return part;
  return nullptr;
}

std::int64_t block_size(const json& state, const char* key, const std::string& where) {
  const std::int64_t block = size(at(state, key, where), key, where);
  require(block > 0 && block % 2 == 0, Failure::input, "{}: '{}' must be even, found {}", where,
          key, block);
  return block;
}

}  // namespace

bool FourBitTensor::is_one(const std::string& tensor, const FileOf& files) {
  return state_of(tensor, files) != nullptr;
}

FourBitTensor::FourBitTensor(std::string tensor, const FileOf& files) : tensor_(std::move(tensor)) {
  const std::string state_name = tensor_ + state_of(tensor_, files);
  const TensorFile& file = *files(state_name);
  const std::string where = fmt::format("{}: tensor {}", file.name(), shown(state_name));
  const TensorEntry& entry = file.tensors().at(state_name);
  require(entry.dtype == "U8" && entry.bytes <= most_state_bytes, Failure::input,
          "{}: expected text of at most {} bytes, found {} of {}", where, most_state_bytes,
          entry.bytes, entry.dtype);
  std::string text(std::size_t(entry.bytes), '\0');
  file.read_bytes(state_name, 0, std::as_writable_bytes(std::span(text)));
  const json state = deck::parse_json(text, where);

  const json& shape = at(state, "shape", where);
  require(shape.is_array() && !shape.empty() && shape.size() <= 8, Failure::input,
          "{}: 'shape' must be a list of sizes", where);
  constexpr std::int64_t most_elements = std::int64_t{1} << 40;
  for (const json& extent : shape) {
    shape_.push_back(size(extent, "shape", where));
    require(shape_.back() > 0 && elements_ <= most_elements / shape_.back(), Failure::input,
            "{}: 'shape' is that of no tensor", where);
    elements_ *= shape_.back();
  }
  const std::string dtype = interop::text(state, "dtype", where);
  dtype_ = dtype == "bfloat16" ? Dtype::bf16 : dtype == "float16" ? Dtype::f16 : Dtype::f32;
  block_ = block_size(state, "blocksize", where);
  codes_ = part("", "U8", ceil_div(elements_, std::int64_t{2}), files);
  values_ = floats(part(".quant_map", "F32", 16, files), 0, 16);
  const std::int64_t blocks = ceil_div(elements_, block_);
  if (files(tensor_ + ".nested_absmax") == nullptr) {
    absmax_ = part(".absmax", "F32", blocks, files);
    return;
  }
  nested_block_ = block_size(state, "nested_blocksize", where);
  nested_offset_ = float(number(at(state, "nested_offset", where), "nested_offset", where));
  absmax_ = part(".absmax", "U8", blocks, files);
  nested_absmax_ = part(".nested_absmax", "F32", ceil_div(blocks, nested_block_), files);
  nested_values_ = floats(part(".nested_quant_map", "F32", 256, files), 0, 256);
}

FourBitTensor::Part FourBitTensor::part(const std::string& suffix, const char* dtype,
                                        std::int64_t elements, const FileOf& files) const {
  const Part part{files(tensor_ + suffix), tensor_ + suffix};
  require(part.file != nullptr, Failure::input, "tensor {} lacks its part {}", shown(tensor_),
          shown(part.name));
  const TensorEntry& entry = part.file->tensors().at(part.name);
  require(entry.dtype == dtype && entry.elements == elements, Failure::input,
          "{}: tensor {} of 4-bit weights must have {} values of {}, found {} of {}",
          part.file->name(), shown(part.name), elements, dtype, entry.elements, entry.dtype);
  return part;
}

std::vector<float> FourBitTensor::floats(const Part& part, std::int64_t first,
                                         std::int64_t count) const {
  std::vector<float> found(std::size_t(count), 0.0f);
  part.file->read(part.name, first, found);
  return found;
}

std::vector<float> FourBitTensor::scales(std::int64_t first, std::int64_t count) const {
  if (nested_block_ == 0) return floats(absmax_, first, count);
  const std::vector<std::uint8_t> codes =
      bytes_of(*absmax_.file, absmax_.name, first, first + count);
  const std::int64_t before = first / nested_block_, end = ceil_div(first + count, nested_block_);
  const std::vector<float> nested = floats(nested_absmax_, before, end - before);
  std::vector<float> found;
  for (std::int64_t i = 0; i < count; ++i) {
    const float scale = nested[std::size_t((first + i) / nested_block_ - before)];
    found.push_back(nested_values_[codes[i]] * scale + nested_offset_);
  }
  return found;
}

void FourBitTensor::read(std::int64_t first, std::span<float> values) const {
  decode_parts(first, values, [&](std::int64_t begin, std::span<float> part) {
    const std::int64_t end = begin + std::ssize(part);
    const std::int64_t first_byte = begin / 2, first_block = begin / block_;
    const std::vector<std::uint8_t> codes =
        bytes_of(*codes_.file, codes_.name, first_byte, ceil_div(end, std::int64_t{2}));
    const std::vector<float> scale = scales(first_block, ceil_div(end, block_) - first_block);
    for (std::int64_t at = begin; at < end; ++at) {
      const int pair = codes[std::size_t(at / 2 - first_byte)];
      part[std::size_t(at - begin)] = values_[std::size_t(at % 2 == 0 ? pair >> 4 : pair & 15)] *
                                      scale[std::size_t(at / block_ - first_block)];
    }
  });
}

}  // namespace brume::interop
