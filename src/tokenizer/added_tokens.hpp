/// @file Tokens that stand for a text wherever it occurs, before anything else is cut.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace brume::tokenizer {

class AddedTokens {
 public:
  struct Token {
    std::string text;
    std::int32_t id;
    bool takes_space_before = false;  ///< lstrip
    bool takes_space_after = false;   ///< rstrip
    bool between_words = false;       ///< single_word: not beside a character of a word
  };
  void add(Token token);

  /// The first of them in a text from byte `from` on, and the longest that begins there, with the
  /// white space it takes; with no bytes at the end when there is none.
  struct Found {
    std::size_t begin, bytes;
    std::int32_t id;
  };
  Found find(std::string_view text, std::size_t from) const;

 private:
  std::array<std::vector<Token>, 256> by_first_byte_;  ///< the longest first
  std::string first_bytes_;
};

}  // namespace brume::tokenizer
