/// @file An independent writer of other programs' token files, for tests: byte by byte, from their
/// documentation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace brume::test {

using Tokens = std::vector<std::int32_t>;

/// A number of `size` bytes, the lowest first.
inline std::string number(std::int64_t value, int size) {
  std::string bytes;
  for (int i = 0; i < size; ++i) bytes += char(value >> (8 * i));
  return bytes;
}

inline std::string numbers(const Tokens& values, int size) {
  std::string bytes;
  for (const std::int32_t value : values) bytes += number(value, size);
  return bytes;
}

inline std::string llm_c(int magic, int version, std::int64_t count, const std::string& tokens) {
  std::string file = number(magic, 4) + number(version, 4) + number(count, 4);
  file.resize(1024, '\0');
  return file + tokens;
}

inline std::string npy(const std::string& type, const std::string& shape, const std::string& tokens,
                       int version = 1) {
  const std::string header =
      "{'descr': '" + type + "', 'fortran_order': False, 'shape': (" + shape + "), }   \n";
  return "\x93NUMPY" + number(version, 1) + number(0, 1) +
         number(std::int64_t(header.size()), version == 1 ? 2 : 4) + header + tokens;
}

/// The index of sequences that lie one after the other.
struct Index {
  int type = 8;
  std::vector<int> lengths;
  std::vector<std::int64_t> documents;
  int token_bytes = 2;
  std::int64_t shift = 0;  ///< of the second offset
  std::int64_t version = 1;

  std::string bytes() const {
    std::string file("MMIDIDX\0\0", 9);
    file += number(version, 8) + number(type, 1) + number(std::ssize(lengths), 8) +
            number(std::ssize(documents), 8);
    for (const int length : lengths) file += number(length, 4);
    std::int64_t at = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      file += number(at + (i == 1 ? shift : 0), 8);
      at += std::int64_t{lengths[i]} * token_bytes;
    }
    for (const std::int64_t document : documents) file += number(document, 8);
    return file;
  }
};

}  // namespace brume::test
