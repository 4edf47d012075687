/// @file Writes token files, token by token.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "data/token_file.hpp"

namespace brume::data {

/// A token file of ours in the making: 16 bits a token where the vocabulary allows, else 32. It
/// holds a few MiB in memory, however many tokens and documents come.
///
/// @throws Error(storage) from every call when writing fails; Error(bug) for a token outside the
///                        vocabulary
class TokenFileWriter {
 public:
  /// @param path  as of OutputFile; not a pipe, since the header is written last
  TokenFileWriter(const std::filesystem::path& path, int vocab_size);
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;
  ~TokenFileWriter();  ///< leaves no file unless it was committed

  void add(std::span<const std::int32_t> tokens);

  /// Says where the next document ends: before token `end`; and from which on it is to be learned.
  /// @param continues  whether it is a part of the document before
  void add_document(std::int64_t end, std::int64_t answer, bool continues = false);

  std::int64_t size() const;  ///< number of tokens added

  /// Puts the file in its place.
  /// @param with_answers  whether it says where answers begin; if not, all is learned
  /// @param pairs  whether each two documents are a prompt with its chosen and its rejected answer
  void commit(bool with_answers, bool pairs = false);

 private:
  struct Making;
  std::unique_ptr<Making> making_;
};

/// Writes a token file of ours, as OutputFile does, with ends of documents where there are any.
/// @throws Error(storage) when writing fails; Error(bug) for a token outside the vocabulary
void write_token_file(const std::filesystem::path& path, std::span<const std::int32_t> tokens,
                      int vocab_size, const DocumentEnds& documents = {}, bool pairs = false);

}  // namespace brume::data
