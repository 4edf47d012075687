/// @file Token files: a checked header and 16-bit tokens, read where they are needed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "base/descriptor.hpp"

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
  /// Reads all of the file once to check it.
  /// @throws Error(input)  when the file is missing, is none of ours, has a length that does not
  ///                       match its header, or holds a token outside its vocabulary; the message
  ///                       names the file
  explicit TokenFile(const std::filesystem::path& path);

  /// Reads tokens from number `first` on. Threads may do so at once.
  /// @throws Error(storage)  when the file cannot be read, or was cut since it was opened
  void read(std::int64_t first, std::span<std::uint16_t> tokens) const;

  std::int64_t size() const { return size_; }  ///< number of tokens
  int vocab_size() const { return vocab_size_; }
  const std::filesystem::path& path() const { return path_; }
  TokenFileIdentity identity() const;

 private:
  std::filesystem::path path_;
  std::shared_ptr<const Descriptor> file_;
  std::int64_t size_ = 0;
  std::uint64_t checksum_ = 0;
  int vocab_size_ = 0;
};

/// Writes a token file, as OutputFile does.
/// @throws Error(storage) when writing fails; Error(bug) for a token outside the vocabulary
void write_token_file(const std::filesystem::path& path, std::span<const std::uint16_t> tokens,
                      int vocab_size);

}  // namespace brume::data
