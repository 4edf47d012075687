#include "interop/safetensors.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.hpp"
#include "safetensors_header.hpp"

namespace brume::interop {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

static_assert(std::endian::native == std::endian::little,
              "values are read as they lie in the file");

constexpr std::int64_t length_bytes = 8;
constexpr std::int64_t most_header_bytes = 100'000'000;
constexpr std::int64_t buffer_elements = std::int64_t{1} << 20;

/// The header's text. @throws Error(input) without the file's name
std::string header_text(const Descriptor& file, const std::string& name, std::int64_t file_bytes) {
  require(file_bytes >= length_bytes, Failure::input, "has {} bytes, a header's length takes {}",
          file_bytes, length_bytes);
  std::array<std::byte, length_bytes> start{};
  read_at(file, 0, start, name);
  const auto bytes = std::bit_cast<std::uint64_t>(start);
  require(bytes <= std::uint64_t(most_header_bytes), Failure::input,
          "its header would have {} bytes, at most {} are read", bytes, most_header_bytes);
  require(std::int64_t(bytes) <= file_bytes - length_bytes, Failure::input,
          "its header would have {} bytes, {} follow its length: it was cut off, or is of another "
          "format",
          bytes, file_bytes - length_bytes);
  std::string text(bytes, '\0');
  const std::size_t got =
      read_at(file, length_bytes, std::as_writable_bytes(std::span(text)), name);
  require(got == text.size() && text.starts_with('{'), Failure::input,
          "its header does not begin with '{{'");
  return text;
}

}  // namespace

const char* name(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32: return "F32";
    case Dtype::bf16: return "BF16";
    case Dtype::f16: return "F16";
  }
  return "";
}

std::optional<Dtype> readable(std::string_view dtype) {
  for (const Dtype one : {Dtype::f32, Dtype::bf16, Dtype::f16})
    if (dtype == name(one)) return one;
  return std::nullopt;
}

std::string shown(std::string_view name) {
  constexpr std::size_t widest = 100;
  const std::string_view part = name.substr(0, widest);
  return json(part).dump(-1, ' ', true, json::error_handler_t::replace) +
         (part.size() < name.size() ? "..." : "");
}

TensorFile::TensorFile(const fs::path& path)
    : name_(path.string()), file_(open_regular(path, Failure::input, Links::follow)) {
  try {
    const std::int64_t bytes = length(file_);
    const std::string text = header_text(file_, name_, bytes);
    const std::int64_t first = length_bytes + std::int64_t(text.size());
    tensors_ = parse_header(text, first, bytes - first);
  } catch (const Error& error) {
    throw Error(error.failure(), "{}: is no whole safetensors file: {}", name_, error.what());
  }
}

Dtype TensorFile::dtype(const std::string& tensor) const {
  const std::string& found = tensors_.at(tensor).dtype;
  if (const std::optional<Dtype> dtype = readable(found)) return *dtype;
  throw Error(
      Failure::input,
      "{}: tensor {} has dtype {}: only F32, BF16, F16, and F8_E4M3 with scales can be read, "
      "so convert it first",
      name_, shown(tensor), found);
}

void TensorFile::read(const std::string& tensor, std::int64_t first,
                      std::span<float> values) const {
  const TensorEntry& entry = tensors_.at(tensor);
  require(first >= 0 && std::ssize(values) <= entry.elements - first, Failure::bug,
          "tensor {} is read beyond its end", shown(tensor));
  with_values(dtype(tensor), [&]<typename Value>(Value) {
    std::vector<Value> stored(std::size_t(std::min(buffer_elements, std::ssize(values))));
    for (std::int64_t done = 0; done < std::ssize(values);) {
      const auto count = std::min(std::ssize(stored), std::ssize(values) - done);
      read_bytes(tensor, (first + done) * std::int64_t(sizeof(Value)),
                 std::as_writable_bytes(std::span(stored).first(std::size_t(count))));
      std::copy_n(stored.begin(), count, values.begin() + done);
      done += count;
    }
  });
}

void TensorFile::read_bytes(const std::string& tensor, std::int64_t first,
                            std::span<std::byte> room) const {
  const TensorEntry& entry = tensors_.at(tensor);
  require(first >= 0 && std::ssize(room) <= entry.bytes - first, Failure::bug,
          "tensor {} is read beyond its end", shown(tensor));
  require(read_at(file_, entry.first_byte + first, room, name_) == room.size(), Failure::input,
          "{}: has become shorter while it is read", name_);
}

std::int64_t NewTensor::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

namespace {

/// The length, and the header padded with spaces so that values begin at a multiple of 8.
std::string header_of(const std::vector<NewTensor>& tensors) {
  json header = json::object();
  header["__metadata__"] = {{"format", "pt"}};  // without it Transformers refuses the file
  std::int64_t reached = 0;
  for (const NewTensor& tensor : tensors) {
    const std::int64_t end = reached + tensor.elements() * dtype_bytes(tensor.dtype);
    header[tensor.name] = {
        {"dtype", name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {reached, end}}};
    reached = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const auto bytes = std::bit_cast<std::array<char, length_bytes>>(std::uint64_t(text.size()));
  return std::string(bytes.begin(), bytes.end()) + text;
}

}  // namespace

TensorWriter::TensorWriter(const fs::path& path, std::vector<NewTensor> tensors)
    : file_(path), tensors_(std::move(tensors)) {
  file_.write(as_bytes(header_of(tensors_)));
}

void TensorWriter::write(std::span<const float> values) {
  while (!values.empty()) {
    require(next_ < tensors_.size(), Failure::bug, "a safetensors file gets {} values too many",
            values.size());
    const NewTensor& tensor = tensors_[next_];
    const std::int64_t left = tensor.elements() - written_;
    const auto part = values.first(std::size_t(std::min(left, std::ssize(values))));
    write_as(tensor.dtype, part);
    written_ += std::ssize(part);
    values = values.subspan(part.size());
    if (std::ssize(part) == left) ++next_, written_ = 0;
  }
}

void TensorWriter::write_as(Dtype dtype, std::span<const float> values) {
  if (dtype == Dtype::f32) return file_.write(std::as_bytes(values));
  with_values(dtype, [&]<typename Value>(Value) {
    std::vector<Value> narrow(std::size_t(std::min(buffer_elements, std::ssize(values))));
    while (!values.empty()) {
      const auto part = values.first(std::min(values.size(), narrow.size()));
      std::ranges::copy(part, narrow.begin());
      file_.write(std::as_bytes(std::span(narrow).first(part.size())));
      values = values.subspan(part.size());
    }
  });
}

void TensorWriter::commit() {
  require(next_ == tensors_.size(), Failure::bug, "a safetensors file lacks values of {}",
          next_ < tensors_.size() ? tensors_[next_].name : "");
  file_.commit();
}

}  // namespace brume::interop
