/// @file Models in Hugging Face's files, for tests, and an independent writer of safetensors: byte
/// by byte, without our own.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "model/model.hpp"

namespace brume::test {

namespace fs = std::filesystem;

inline std::string content(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void put(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

/// A file of this header and these values.
inline std::string framed(const std::string& header, const std::string& values) {
  std::string length;
  for (int byte = 0; byte < 8; ++byte) length += char(header.size() >> (8 * byte) & 0xff);
  return length + header + values;
}

/// A tensor whose values are given as bytes.
struct RawTensor {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
  bool operator==(const RawTensor&) const = default;
};

inline std::string safetensors(const std::vector<RawTensor>& tensors) {
  std::string header = "{", values;
  for (const RawTensor& tensor : tensors) {
    std::string shape;
    for (const std::int64_t extent : tensor.shape)
      shape += (shape.empty() ? "" : ",") + std::to_string(extent);
    header += (header.size() > 1 ? "," : "") + ("\"" + tensor.name) + "\":{\"dtype\":\"" +
              tensor.dtype + "\",\"shape\":[" + shape + "],\"data_offsets\":[" +
              std::to_string(values.size()) + "," +
              std::to_string(values.size() + tensor.bytes.size()) + "]}";
    values += tensor.bytes;
  }
  return framed(header + "}", values);
}

/// The model of a directory's config.json.
inline model::Config config_of(const fs::path& directory, const deck::AdapterKeys& adapter = {}) {
  deck::ModelKeys keys;
  keys.config = directory / "config.json";
  keys = model::resolved(keys);
  keys.adapter = adapter;
  return model::config(keys, "fp32");
}

}  // namespace brume::test
