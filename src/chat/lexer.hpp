/// @file Words of a template.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace brume::chat {

struct Word {
  enum class Kind {
    text,   ///< outside of tags
    begin,  ///< of a tag: "{%" or "{{"
    end,    ///< of a tag: "%}" or "}}"
    name,
    string,
    whole,
    number,
    sign,
    last  ///< behind all others
  };
  Kind kind;
  std::string text;  ///< of a string: without quotes and escapes
  int line;
};

/// Cuts a template into words, and removes the white space that tags remove around them.
/// @throws Error(input) naming the line
std::vector<Word> words_of(std::string_view text, const std::string& name);

}  // namespace brume::chat
