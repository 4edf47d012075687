#include "document_table.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "token_format.hpp"

namespace brume::data {

namespace {
constexpr std::int64_t block_documents = 64;
}

DocumentTable::DocumentTable(std::int64_t tokens, std::int64_t count, Read ends, Read answers,
                             const std::string& name, bool marked)
    : count_(count), ends_(std::move(ends)), answers_(std::move(answers)), marked_(marked) {
  std::int64_t end = 0;
  for (std::int64_t index = 0; index * block_documents < count; ++index) {
    for (const Document& document : block(index)) {
      require(
          document.first == end && document.first <= document.answer &&
              document.answer <= document.end && document.end <= tokens,
          Failure::input,
          "{}: says that a document has the tokens {} to {}, learned from {} on, which is wrong "
          "of a file of {} tokens: write it again",
          name, document.first, document.end, document.answer, tokens);
      require(!document.continues || document.first > 0, Failure::input,
              "{}: says that its first document continues another: write it again", name);
      end = document.end;
    }
    block_ends_.push_back(end);
  }
  require(end == tokens, Failure::input,
          "{}: its last document ends with token {}, but it has {}: write it again", name, end,
          tokens);
}

/// Documents 64 index to 64 index + 63.
std::vector<Document> DocumentTable::block(std::int64_t index) const {
  const std::int64_t first = index * block_documents;
  const auto size = std::size_t(std::min(block_documents, count_ - first));
  std::vector<std::int64_t> ends(size), answers(size);
  ends_(first, ends);
  if (answers_) answers_(first, answers);
  std::vector<Document> found(size);
  std::int64_t begin = index == 0 ? 0 : block_ends_[index - 1];
  for (std::size_t i = 0; i < size; ++i) {
    const bool continues = marked_ && (answers[i] & continues_mark) != 0;
    if (continues) answers[i] &= ~continues_mark;
    found[i] = {begin, answers_ ? answers[i] : begin, ends[i], continues};
    begin = ends[i];
  }
  return found;
}

std::array<Document, 2> DocumentTable::pair(std::int64_t number) const {
  const std::vector<Document> documents = block(2 * number / block_documents);
  const auto first = std::size_t(2 * number % block_documents);
  return {documents[first], documents[first + 1]};
}

std::vector<Document> DocumentTable::find(std::int64_t first, std::int64_t end) const {
  std::vector<Document> found;
  auto index = std::ranges::upper_bound(block_ends_, first) - block_ends_.begin();
  for (; index < std::ssize(block_ends_); ++index)
    for (const Document& document : block(index)) {
      if (document.first >= end) return found;
      if (document.end > first) found.push_back(document);
    }
  return found;
}

}  // namespace brume::data
