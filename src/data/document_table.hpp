/// @file Where documents of a token file end, looked up in the file.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "data/token_file.hpp"

namespace brume::data {

/// Ends of documents, and where their answers begin, of which every 64th end is kept in memory: a
/// search reads one block of the file.
class DocumentTable {
 public:
  /// Fills a row of numbers from number `first` on.
  using Read = std::function<void(std::int64_t first, std::span<std::int64_t> numbers)>;

  /// Reads all once to check it.
  /// @param tokens   of the file
  /// @param ends     of `count` documents
  /// @param answers  where each one's answer begins; empty: all of it is one
  /// @param name     of the file, for errors
  /// @param marked   answers have `continues_mark` where a document continues the one before
  /// @throws Error(input) when ends fall or are not those of all tokens, or answers lie outside
  DocumentTable(std::int64_t tokens, std::int64_t count, Read ends, Read answers,
                const std::string& name, bool marked = false);

  std::int64_t count() const { return count_; }
  std::array<Document, 2> pair(std::int64_t number) const;  ///< documents 2 number, 2 number + 1
  /// Those that tokens [first, end) belong to.
  std::vector<Document> find(std::int64_t first, std::int64_t end) const;

 private:
  std::vector<Document> block(std::int64_t index) const;

  std::int64_t count_;
  Read ends_, answers_;
  bool marked_;
  std::vector<std::int64_t> block_ends_;  ///< of each block's last document
};

}  // namespace brume::data
