/// @file Token files: a checked header and 16-bit tokens, mapped read-only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace brume::data {

/// What tells one token file from another: two files with the same checksum, number of tokens and
/// vocabulary hold the same tokens, wherever they lie.
struct TokenFileIdentity {
  std::string path;            ///< as it was given
  std::uint64_t checksum = 0;  ///< of the header and of all tokens, as the header stores it
  std::int64_t tokens = 0;     ///< number of tokens
  int vocab_size = 0;
  bool operator==(const TokenFileIdentity&) const = default;
};

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
  TokenFileIdentity identity() const;

 private:
  std::filesystem::path path_;
  std::shared_ptr<const std::byte> mapping_;
  std::span<const std::uint16_t> tokens_;
  std::uint64_t checksum_ = 0;
  int vocab_size_ = 0;
};

/// Writes a token file under a temporary name, then renames it.
/// @throws Error(storage) when writing fails; Error(bug) for a token outside the vocabulary
void write_token_file(const std::filesystem::path& path, std::span<const std::uint16_t> tokens,
                      int vocab_size);

}  // namespace brume::data
