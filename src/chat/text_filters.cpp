/// @file Filters that make a text or a number.
#include "text_filters.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <string>

#include "base/error.hpp"
#include "budget.hpp"
#include "characters.hpp"

namespace brume::chat {

namespace {

/// A text, or so many spaces.
std::string indent_of(const Value& width) {
  if (width.text()) return *width.text();
  const auto spaces = std::size_t(std::max<std::int64_t>(0, whole_of(width)));
  require_size(spaces);
  return std::string(spaces, ' ');
}

}  // namespace

Value as_json(Run&, const Value& value, const Arguments& given) {
  JsonStyle style;
  const Value ascii = given.get(0, "ensure_ascii", false), indent = given.get(1, "indent", None{}),
              separators = given.get(2, "separators", None{});
  style.ascii = ascii.truth();
  if (!indent.none()) {
    style.indent = indent_of(indent);
    style.between = ",";
  }
  if (!separators.none()) {
    const std::vector<Value> both = separators.items();
    require(both.size() == 2, Failure::input, "'separators' must be two texts");
    style.between = text_of(both[0]);
    style.after_key = text_of(both[1]);
  }
  style.sort_keys = given.get(3, "sort_keys", false).truth();
  return json_text(value, style);
}

Value indented(Run&, const Value& value, const Arguments& given) {
  const std::string before = indent_of(given.get(0, "width", 4));
  const bool first = given.get(1, "first", false).truth(),
             blank = given.get(2, "blank", false).truth();
  std::string made;
  bool begins = true;
  for (const std::string& line : lines(value.str() + "\n")) {
    if (!begins) made += "\n";
    if (begins ? first : blank || !line.empty()) made += before;
    made += line;
    begins = false;
    require_size(made.size());
  }
  return made;
}

Value headline(Run&, const Value& value, const Arguments&) {
  std::u32string points = code_points(value.str());
  bool begins = true;
  for (char32_t& point : points) {
    point = begins ? upper(point) : lower(point);
    begins =
        is_space(point) || std::u32string_view(U"-({[<").find(point) != std::u32string_view::npos;
  }
  return utf8(points);
}

Value escaped(Run&, const Value& value, const Arguments&) {
  std::string made;
  for (const char c : value.str()) {
    require_size(made.size());
    switch (c) {
      case '&': made += "&amp;"; break;
      case '<': made += "&lt;"; break;
      case '>': made += "&gt;"; break;
      case '"': made += "&#34;"; break;
      case '\'': made += "&#39;"; break;
      default: made += c;
    }
  }
  return made;
}

Value as_whole(Run&, const Value& value, const Arguments& given) {
  if (value.whole()) return *value.whole();
  const Value otherwise = given.get(0, "default", 0);
  if (const double* number = value.as<double>())
    return std::abs(*number) < 9.2e18 ? Value(std::int64_t(*number)) : otherwise;
  if (!value.text()) return otherwise;
  const std::string text = stripped(*value.text(), Ends::both);
  char* end = nullptr;
  errno = 0;
  const long long number = std::strtoll(
      text.c_str(), &end, int(std::clamp<std::int64_t>(whole_of(given.get(1, "base", 10)), 2, 36)));
  if (!text.empty() && *end == '\0' && errno == 0) return std::int64_t(number);
  const double real = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0' && std::abs(real) < 9.2e18 ? Value(std::int64_t(real))
                                                                  : otherwise;
}

Value as_number(Run&, const Value& value, const Arguments& given) {
  if (value.number()) return *value.number();
  const Value otherwise = given.get(0, "default", 0.0);
  if (!value.text()) return otherwise;
  const std::string text = stripped(*value.text(), Ends::both);
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0' ? Value(number) : otherwise;
}

Value rounded(Run&, const Value& value, const Arguments& given) {
  require(value.number().has_value(), Failure::input, "round needs a number, found '{}'",
          value.type());
  const Value method = given.get(1, "method", "common");
  if (value.whole() && method == Value("common")) return *value.whole();
  const double scale = std::pow(10.0, double(whole_of(given.get(0, "precision", 0))));
  const double scaled = *value.number() * scale;
  const double made = method == Value("ceil")    ? std::ceil(scaled)
                      : method == Value("floor") ? std::floor(scaled)
                                                 : std::nearbyint(scaled);
  return made / scale;
}

}  // namespace brume::chat
