/// @file Values as JSON, as Python's json.dumps writes it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "budget.hpp"
#include "characters.hpp"
#include "value.hpp"

namespace brume::chat {
namespace {

std::string json_quoted(std::string_view text, bool ascii) {
  std::string made = "\"";
  for (const char32_t point : code_points(text)) {
    const auto number = std::uint32_t(point);
    switch (point) {
      case '"': made += "\\\""; break;
      case '\\': made += "\\\\"; break;
      case '\n': made += "\\n"; break;
      case '\r': made += "\\r"; break;
      case '\t': made += "\\t"; break;
      case '\f': made += "\\f"; break;
      case '\b': made += "\\b"; break;
      default:
        if (number >= 0x20 && (number < 0x7f || !ascii))
          made += utf8({&point, 1});
        else if (number < 0x10000)
          made += fmt::format("\\u{:04x}", number);
        else
          made += fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + ((number - 0x10000) >> 10),
                              0xdc00 + ((number - 0x10000) & 0x3ff));
    }
  }
  return made += '"';
}

/// A key of an object of JSON.
std::string key_text(const Value& key) {
  if (key.text()) return *key.text();
  if (const bool* flag = key.as<bool>()) return *flag ? "true" : "false";
  if (key.none()) return "null";
  require(key.number().has_value(), Failure::input, "keys of JSON must be str, not {}", key.type());
  return key.str();
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  void write(const Value& value) {
    if (const std::string* string = value.text()) {
      text += json_quoted(*string, style_.ascii);
    } else if (const List* list = value.list()) {
      block('[', ']', list->items.size(), [&](std::size_t i) { write(list->items[i]); });
    } else if (const Dict* dict = value.dict()) {
      std::vector<std::pair<Value, Value>> sorted;
      if (style_.sort_keys) {
        sorted = dict->items;
        std::ranges::stable_sort(
            sorted, [](const auto& a, const auto& b) { return a.first.compare(b.first) < 0; });
      }
      const auto& items = style_.sort_keys ? sorted : dict->items;
      block('{', '}', items.size(), [&](std::size_t i) {
        text += json_quoted(key_text(items[i].first), style_.ascii) + style_.after_key;
        write(items[i].second);
      });
    } else if (const bool* flag = value.as<bool>()) {
      text += *flag ? "true" : "false";
    } else if (value.none()) {
      text += "null";
    } else {
      require(value.number().has_value(), Failure::input, "JSON has no {}", value.type());
      const double number = *value.number();
      text += std::isnan(number)   ? "NaN"
              : std::isinf(number) ? (number < 0.0 ? "-Infinity" : "Infinity")
                                   : value.str();
    }
    require_size(text.size());
    charge(sizeof(Value));
  }

  std::string text;

 private:
  template <class Write>
  void block(char begin, char end, std::size_t count, const Write& write_item) {
    text += begin;
    ++level_;
    for (std::size_t i = 0; i < count; ++i) {
      if (i > 0) text += style_.between;
      new_line();
      write_item(i);
    }
    --level_;
    if (count > 0) new_line();
    text += end;
  }
  void new_line() {
    if (!style_.indent) return;
    require_size(text.size() + style_.indent->size() * std::size_t(level_));
    text += '\n';
    for (int i = 0; i < level_; ++i) text += *style_.indent;
  }

  const JsonStyle& style_;
  int level_ = 0;
};

}  // namespace

std::string json_text(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  writer.write(value);
  return std::move(writer.text);
}

}  // namespace brume::chat
