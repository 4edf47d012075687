/// @file What Unicode says about whole texts.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace brume::tokenizer {

/// The text with U+FFFD for each longest part that begins a character of UTF-8 without ending it,
/// and for each byte that begins none.
/// @source  the Unicode Standard, section 3.9, "substitution of maximal subparts"
std::string with_valid_utf8(std::string_view text);

/// Normalization form C of a text in valid UTF-8. @throws Error(resource)
std::string composed(std::string_view text);

/// A text in which `by` takes the place of each `from`, which is not empty.
std::string replaced(std::string_view text, std::string_view from, std::string_view by);

/// Bytes of the character that a text in valid UTF-8 begins with; it must not be empty.
std::size_t character_bytes(std::string_view text);

/// Whether a text in valid UTF-8 begins or ends with a character of a word: a letter, a mark, a
/// decimal digit, or what joins words.
/// @source  Unicode Technical Standard 18, annex C, \w
bool begins_with_word(std::string_view text);
bool ends_with_word(std::string_view text);

/// Bytes of white space (Unicode's White_Space) that a text in valid UTF-8 begins and ends with.
std::size_t leading_space_bytes(std::string_view text);
std::size_t trailing_space_bytes(std::string_view text);

}  // namespace brume::tokenizer
