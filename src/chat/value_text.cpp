/// @file Values as texts, as Python's str() and repr() write them.
#include <fmt/format.h>

#include <cmath>
#include <cstdint>

#include "budget.hpp"
#include "characters.hpp"
#include "value.hpp"

namespace brume::chat {
namespace {

std::string number_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0.0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == text.npos) text += ".0";
  return text;
}

std::string python_quoted(std::string_view text) {
  const char mark = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
  std::string made(1, mark);
  for (const char32_t point : code_points(text)) {
    if (point == '\\' || point == char32_t(mark))
      made.append({'\\', char(point)});
    else if (point == '\n')
      made += "\\n";
    else if (point == '\r')
      made += "\\r";
    else if (point == '\t')
      made += "\\t";
    else if (is_printable(point))
      made += utf8({&point, 1});
    else if (point < 0x100)
      made += fmt::format("\\x{:02x}", std::uint32_t(point));
    else if (point < 0x10000)
      made += fmt::format("\\u{:04x}", std::uint32_t(point));
    else
      made += fmt::format("\\U{:08x}", std::uint32_t(point));
  }
  return made += mark;
}

}  // namespace

std::string Value::str() const {
  if (text()) return *text();
  if (undefined()) return {};
  return repr();
}

std::string Value::repr() const {
  if (undefined()) return "Undefined";
  if (none()) return "None";
  if (const bool* flag = as<bool>()) return *flag ? "True" : "False";
  if (const std::int64_t* number = as<std::int64_t>()) return fmt::format("{}", *number);
  if (const double* number = as<double>()) return number_text(*number);
  if (text()) return python_quoted(*text());
  std::string made;
  const auto join = [&](const std::string& item) {
    require_size(made.size() + item.size());
    charge(item.size());
    made += (made.empty() ? "" : ", ") + item;
  };
  if (const List* found = list()) {
    for (const Value& item : found->items) join(item.repr());
    if (!found->tuple) return "[" + made + "]";
    return "(" + made + (found->items.size() == 1 ? ",)" : ")");
  }
  if (const Dict* found = dict()) {
    for (const auto& [key, value] : found->items) join(key.repr() + ": " + value.repr());
    return "{" + made + "}";
  }
  return function() ? fmt::format("<function {}>", function()->name) : "<object>";
}

}  // namespace brume::chat
