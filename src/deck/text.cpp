#include "deck/text.hpp"

#include <fmt/format.h>

#include <cmath>

#include "base/error.hpp"
#include "base/text.hpp"

namespace brume::deck {
namespace {

std::string format_item(bool value) { return value ? "true" : "false"; }
std::string format_item(std::int64_t value) { return fmt::to_string(value); }
std::string format_item(int value) { return fmt::to_string(value); }
std::string format_item(double value) { return format_real(value); }
std::string format_item(const std::string& value) { return quote(value); }

std::string format_item(const detail::Choice& choice) { return quote(choice.word()); }

template <typename T>
std::string format_item(const std::vector<T>& list) {
  std::vector<std::string> items;
  for (const T& item : list) items.push_back(format_item(item));
  return fmt::format("[{}]", join(items, ", "));
}

}  // namespace

std::string quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      out += {'\\', c};
    else if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (byte < 0x20 || byte == 0x7f)
      out += fmt::format("\\u{:04X}", byte);
    else
      out += c;
  }
  return out + "\"";
}

std::string shortened(const std::string& text, std::size_t width) {
  if (text.size() <= width) return text;
  return std::string(beginning(text, width)) + "...";
}

std::string join(const std::vector<std::string>& words, std::string_view between) {
  std::string text;
  for (const std::string& word : words) (text.empty() ? text : text += between) += word;
  return text;
}

std::string format_real(double number) {
  require(std::isfinite(number), Failure::bug, "a number to be written as TOML is {}", number);
  std::string text = fmt::format("{}", number);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string format_value(const detail::Value& value) {
  return std::visit([](const auto& member) { return format_item(*member); }, value);
}

std::string format_bounds(const Key& key) {
  if (!key.choices.empty()) return join(key.choices, " | ");
  const bool low = std::isfinite(key.min);
  const bool high = std::isfinite(key.max);
  // 15 digits show every bound that people write, and whole numbers without an exponent.
  if (low && high) return fmt::format("in {:.15g}..{:.15g}", key.min, key.max);
  if (low) return fmt::format(">= {:.15g}", key.min);
  if (high) return fmt::format("<= {:.15g}", key.max);
  return "";
}

}  // namespace brume::deck
