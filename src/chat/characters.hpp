/// @file Characters of texts in UTF-8, as Python counts and changes them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace brume::chat {

/// The code points of a text; a byte that is no UTF-8 is U+FFFD.
std::u32string code_points(std::string_view text);
std::string utf8(std::u32string_view points);

bool is_space(char32_t point);
bool is_letter(char32_t point);
bool is_digit(char32_t point);
bool is_printable(char32_t point);  ///< as repr() decides
char32_t upper(char32_t point);
char32_t lower(char32_t point);

/// A text with each code point changed.
std::string changed(std::string_view text, char32_t (*change)(char32_t));
/// A text whose first code point is changed to upper case, and the others to lower case.
std::string capitalized(std::string_view text);

/// Bytes of white space that a text begins and ends with.
std::size_t leading_space_bytes(std::string_view text);
std::size_t trailing_space_bytes(std::string_view text);

/// Ends of a text that strip() looks at.
enum class Ends { both, left, right };
/// A text without the code points `set` at its ends; an empty set is white space.
std::string stripped(std::string_view text, Ends ends, std::string_view set = {});

/// Lines of a text, as splitlines() makes them.
std::vector<std::string> lines(std::string_view text);

}  // namespace brume::chat
