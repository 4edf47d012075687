/// @file Token files, ours and those of other programs, read where they lie as they are needed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/descriptor.hpp"

namespace brume::data {

/// Identity of a token file: two files with the same checksum, number of tokens and vocabulary hold
/// the same tokens.
struct TokenFileIdentity {
  std::string path;            ///< path as given
  std::uint64_t checksum = 0;  ///< checksum of header and tokens (src/data/README.md)
  std::int64_t tokens = 0;     ///< number of tokens
  int vocab_size = 0;  ///< vocabulary size; if the file does not have it: its largest token + 1
  bool operator==(const TokenFileIdentity&) const = default;
};

/// Tokens [first, end) of a file, of which those before `answer` are given, not to be learned. A
/// conversation has one part for each answer, and all parts but the first continue it.
struct Document {
  std::int64_t first = 0, answer = 0, end = 0;
  bool continues = false;  ///< it is a part of the same document as the one before
  bool operator==(const Document&) const = default;
};

/// Ends of a token file's documents, and starts of their answers.
struct DocumentEnds {
  std::vector<std::int64_t> ends;     ///< the last one is the number of tokens
  std::vector<std::int64_t> answers;  ///< one per document, within it; or none: all is learned
  std::vector<bool> continued = {};   ///< per document; none: no document continues another
};

/// Tokens by which documents are told apart in a file that does not say where they end; -1: none.
struct DocumentMarks {
  int begin = -1;  ///< first token of each document
  int end = -1;    ///< last token of each document
};

/// Facts that a pass over a whole token file gives.
struct TokenCheck {
  std::uint64_t checksum = 0;
  int vocab_size = 0;
};
/// ... by TokenFile::key().
using TokenChecks = std::map<std::string, TokenCheck>;

class DocumentTable;
struct Header;

/// A token file opened for reading: one of ours, or one of Megatron (.bin with its .idx), llm.c,
/// numpy (.npy) or nanoGPT (named .u16 or .u32). The layouts are in src/data/README.md.
class TokenFile {
 public:
  /// Reads all of the file once to check it, unless `known` has what that tells and no documents
  /// are told apart by marks. Those take 8 bytes each in memory.
  /// @throws Error(input)  when the file is missing or of no known kind, has a length that does not
  ///                       match its header, or holds a token outside its vocabulary, or none of
  ///                       the marks; the message names the file
  explicit TokenFile(const std::filesystem::path& path, DocumentMarks marks = {},
                     const TokenChecks& known = {});

  /// Reads tokens from number `first` on. Threads may do so at once.
  /// @throws Error(storage)  when the file cannot be read, or was cut since it was opened
  void read(std::int64_t first, std::span<std::int32_t> tokens) const;

  /// The documents that tokens [first, end) belong to, in order; one of all tokens in a file that
  /// does not say where they end. Threads may ask at once.
  /// @throws Error(storage)  as read
  std::vector<Document> documents(std::int64_t first, std::int64_t end) const;
  bool has_documents() const { return documents_ != nullptr; }

  /// Whether documents 2 i and 2 i + 1 are a prompt with its chosen and with its rejected answer.
  bool has_pairs() const { return has_pairs_; }
  std::int64_t num_pairs() const;
  /// The chosen and the rejected document of a pair. Threads may ask at once.
  /// @throws Error(storage)  as read
  std::array<Document, 2> pair(std::int64_t number) const;

  std::int64_t size() const { return size_; }  ///< number of tokens
  int vocab_size() const { return vocab_size_; }
  const std::filesystem::path& path() const { return path_; }
  TokenFileIdentity identity() const;

  /// The name of the file's content: where it lies, which file it is, how long, when it was changed
  /// last, and how its tokens lie in it. Empty: it was changed while it was read.
  const std::string& key() const { return key_; }

 private:
  /// Reads all behind the header, if there is one. Finds documents by marks that are not -1.
  void read_through(const Header* header, DocumentMarks marks);
  void read_bytes(std::int64_t first, std::span<std::byte> bytes) const;

  std::filesystem::path path_;
  std::shared_ptr<const Descriptor> file_;
  std::int64_t first_byte_ = 0;
  int token_bytes_ = 0;
  std::int64_t size_ = 0;
  std::shared_ptr<const DocumentTable> documents_;  ///< none: the file has no ends
  bool has_pairs_ = false;
  std::uint64_t checksum_ = 0;
  int vocab_size_ = 0;
  std::string key_;
};

}  // namespace brume::data
