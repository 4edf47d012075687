/// @file Files in the format safetensors: named tensors behind a header in JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bfloat16.hpp"
#include "base/descriptor.hpp"
#include "base/files.hpp"
#include "base/float16.hpp"

namespace brume::interop {

/// Number formats whose values can be read as fp32 without a rounding.
enum class Dtype { f32, bf16, f16 };
inline constexpr std::int64_t dtype_bytes(Dtype dtype) { return dtype == Dtype::f32 ? 4 : 2; }
const char* name(Dtype dtype);  ///< name in a file: "F32", "BF16", "F16"

/// The format of a dtype in a file; nothing for one whose values cannot be read so.
std::optional<Dtype> readable(std::string_view dtype);

/// Calls work(Value()) with the type of a dtype's values.
template <typename Work>
void with_values(Dtype dtype, Work&& work) {
  switch (dtype) {
    case Dtype::f32: return work(float());
    case Dtype::bf16: return work(bfloat16());
    case Dtype::f16: return work(float16());
  }
}

/// A tensor of a file, as its header describes it.
struct TensorEntry {
  std::string dtype;                ///< name in the file, one that the format knows
  std::vector<std::int64_t> shape;  ///< slowest index first
  std::int64_t elements = 0;
  std::int64_t first_byte = 0;  ///< start in the file
  std::int64_t bytes = 0;
};

/// A file that somebody else may have made, open for reading:
///
///   8 bytes     N, little-endian
///   N bytes     {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
///               "__metadata__": {"key": "text", ...}}, spaces behind it
///   the rest    values, little-endian; offsets count from here
///
/// Its header is checked whole, as the reference reader does: N is at most 100 MB and within the
/// file; the JSON has just these keys, each name once; a tensor has the bytes of its shape and
/// dtype; the tensors fill the rest of the file without holes and overlaps.
///
/// @source  github.com/huggingface/safetensors, README.md ("Format")
class TensorFile {
 public:
  /// @throws Error(input) naming the file and what is wrong
  explicit TensorFile(const std::filesystem::path& path);

  const std::string& name() const { return name_; }
  const std::map<std::string, TensorEntry>& tensors() const { return tensors_; }

  /// The number format of a tensor's values. @throws Error(input) for another one than Dtype's
  Dtype dtype(const std::string& tensor) const;

  /// Values of a tensor from element `first` on, widened to fp32.
  /// @throws Error(input) when the file has become shorter or cannot be read
  void read(const std::string& tensor, std::int64_t first, std::span<float> values) const;
  /// Bytes of a tensor of any format from its byte `first` on. @throws  as read
  void read_bytes(const std::string& tensor, std::int64_t first, std::span<std::byte> room) const;

 private:
  std::string name_;
  Descriptor file_;
  std::map<std::string, TensorEntry> tensors_;
};

/// A tensor to write.
struct NewTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  Dtype dtype = Dtype::f32;

  std::int64_t elements() const;
};

/// Writes a file: first the header, then values in the order of the tensors. The file takes its
/// place by commit().
///
/// @throws Error(storage)  from every call
class TensorWriter {
 public:
  TensorWriter(const std::filesystem::path& path, std::vector<NewTensor> tensors);

  /// The next values of the tensors, which follow each other; rounded to nearest, ties to even.
  void write(std::span<const float> values);
  void commit();

 private:
  void write_as(Dtype dtype, std::span<const float> values);

  OutputFile file_;
  std::vector<NewTensor> tensors_;
  std::size_t next_ = 0;      ///< tensor that values go to
  std::int64_t written_ = 0;  ///< values of it
};

/// A name from a file in a message: in quotes, short, without control characters.
std::string shown(std::string_view name);

}  // namespace brume::interop
