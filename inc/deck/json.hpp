/// @file Reads JSON that somebody else may have made.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace brume::deck {

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
