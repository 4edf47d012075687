#include "deck/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/files.hpp"
#include "deck/text.hpp"

namespace brume::deck {
namespace {

constexpr int deepest_json = 64;

/// "a.json:3:14", of a byte of the text.
std::string json_place(std::string_view text, std::size_t byte, const std::string& origin) {
  const std::string_view before = text.substr(0, std::min(byte, text.size()));
  const std::size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
  return fmt::format("{}:{}:{}", origin, std::ranges::count(before, '\n') + 1,
                     before.size() - line_start + 1);
}

void check_depth(std::string_view text, const std::string& origin) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '\\') ++i;
    if (c == '"') quoted = !quoted;
    if (quoted) continue;
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (depth > deepest_json)
      throw Error(Failure::input, "{}: is nested more than {} deep", json_place(text, i, origin),
                  deepest_json);
  }
}

template <class Json>
Json parse(std::string_view text, const std::string& origin) {
  check_depth(text, origin);
  try {
    return Json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    const std::size_t at = error.byte > 0 ? error.byte - 1 : 0;
    throw Error(Failure::input, "{}: is not JSON from here on", json_place(text, at, origin));
  } catch (const nlohmann::json::exception&) {
    throw Error(Failure::input, "{}: is not JSON that fits: a number is too large", origin);
  }
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& origin) {
  return parse<nlohmann::json>(text, origin);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& origin) {
  return parse<nlohmann::ordered_json>(text, origin);
}

nlohmann::json load_json(const std::string& path, std::size_t most_bytes) {
  const Bytes bytes = read_file(path, Failure::input, std::int64_t(most_bytes), Links::follow);
  return parse_json(as_text(bytes), path);
}

std::string describe_json(const nlohmann::json& value) {
  constexpr std::size_t widest = 40;
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  if (value.is_string()) return quote(shortened(value.get_ref<const std::string&>(), widest));
  return shortened(value.dump(), widest);
}

}  // namespace brume::deck
