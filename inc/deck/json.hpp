/// @file Reads JSON that somebody else may have made.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace brume::deck {

inline constexpr std::string_view json_spaces = " \t\r\n";

/// A text behind its byte order mark, if it has one.
inline std::string_view without_mark(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  return text;
}

/// @param text    nested at most 64 deep: what walks over it by recursion is safe
/// @param origin  the file's name, for messages
/// @throws Error(input) with origin, line and column when the text is not JSON
nlohmann::json parse_json(std::string_view text, const std::string& origin);
/// The same, with the keys of objects, at most 10,000 each, in their order.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& origin);

/// A regular file of at most so many bytes. @throws Error(input)
nlohmann::json load_json(const std::string& path, std::size_t most_bytes);

/// One short line for a message: a value as JSON, or "a list".
std::string describe_json(const nlohmann::json& value);

}  // namespace brume::deck
