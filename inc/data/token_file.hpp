/// @file Token files: a checked header and 16-bit tokens, mapped read-only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace brume::data {

/// A token file opened for reading. Little-endian layout, documented in src/data/README.md.
class TokenFile {
 public:
  /// @throws Error(input) when the file is missing, is none of ours, has a length that does not
  /// match
  ///         its header, or holds a token outside its vocabulary; the message names the file
  explicit TokenFile(const std::filesystem::path& path);

  std::span<const std::uint16_t> tokens() const { return tokens_; }
  int vocab_size() const { return vocab_size_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::shared_ptr<const std::byte> mapping_;
  std::span<const std::uint16_t> tokens_;
  int vocab_size_ = 0;
};

/// Writes a token file under a temporary name, then renames it.
/// @throws Error(storage) when writing fails; Error(bug) for a token outside the vocabulary
void write_token_file(const std::filesystem::path& path, std::span<const std::uint16_t> tokens,
                      int vocab_size);

}  // namespace brume::data
