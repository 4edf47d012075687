#include "deck/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/files.hpp"
#include "deck/text.hpp"

namespace brume::deck {
namespace {

constexpr int deepest_json = 64;
constexpr std::int64_t most_ordered_members = 10'000;  // each is compared with all before it

/// "a.json:3:14", of a byte of the text.
std::string json_place(std::string_view text, std::size_t byte, const std::string& origin) {
  const std::string_view before = text.substr(0, std::min(byte, text.size()));
  const std::size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
  return fmt::format("{}:{}:{}", origin, std::ranges::count(before, '\n') + 1,
                     before.size() - line_start + 1);
}

/// @param most_members  of an object
void check_size(std::string_view text, const std::string& origin, std::int64_t most_members) {
  int depth = 0;
  bool quoted = false;
  std::array<std::int64_t, deepest_json + 1> members{};  // of the open objects; below 0: of lists
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '\\') ++i;
    if (c == '"') quoted = !quoted;
    if (quoted) continue;
    if (c == '[' || c == '{') ++depth;
    if (depth > deepest_json)
      throw Error(Failure::input, "{}: is nested more than {} deep", json_place(text, i, origin),
                  deepest_json);
    if (c == '[' || c == '{') members[std::size_t(depth)] = c == '{' ? 1 : -1;
    if (c == ']' || c == '}') depth = std::max(depth - 1, 0);
    if (c == ',' && members[std::size_t(depth)] > 0 && ++members[std::size_t(depth)] > most_members)
      throw Error(Failure::input, "{}: an object has more than {} keys",
                  json_place(text, i, origin), most_members);
  }
}

template <class Json>
Json parse(std::string_view text, const std::string& origin, std::int64_t most_members) {
  check_size(text, origin, most_members);
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
  return parse<nlohmann::json>(text, origin, std::numeric_limits<std::int64_t>::max());
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& origin) {
  return parse<nlohmann::ordered_json>(text, origin, most_ordered_members);
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
