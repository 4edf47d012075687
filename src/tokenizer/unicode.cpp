#include "unicode.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>

#include "base/error.hpp"

namespace brume::tokenizer {
namespace {

/// How far the bytes at the beginning go as one character, and whether they are a whole one.
struct Character {
  std::size_t bytes;
  bool whole;
};

/// @source  the Unicode Standard, table 3-7
Character character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return {1, true};
  const std::size_t size = first < 0xc2   ? 0
                           : first < 0xe0 ? 2
                           : first < 0xf0 ? 3
                           : first < 0xf5 ? 4
                                          : 0;
  if (size == 0) return {1, false};
  for (std::size_t i = 1; i < size; ++i) {
    const unsigned least = i > 1 ? 0x80 : first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    const unsigned most = i > 1 ? 0xbf : first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (i >= text.size() || byte(i) < least || byte(i) > most) return {i, false};
  }
  return {size, true};
}

/// @source  the Unicode Character Database, PropList.txt, White_Space
constexpr std::array<std::string_view, 25> spaces{
    "\t",           "\n",           "\v",           "\f",           "\r",           " ",
    "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81", "\xe2\x80\x82",
    "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86", "\xe2\x80\x87", "\xe2\x80\x88",
    "\xe2\x80\x89", "\xe2\x80\x8a", "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f",
    "\xe3\x80\x80"};

bool is_of_word(std::string_view character) {
  utf8proc_int32_t code = -1;
  utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(character.data()),
                   utf8proc_ssize_t(character.size()), &code);
  const auto within = [code](int first, int last) { return code >= first && code <= last; };
  switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: break;
  }
  // Join_Control, and the letters in circles and squares, which are Alphabetic.
  return within(0x200c, 0x200d) || within(0x24b6, 0x24e9) || within(0x1f130, 0x1f149) ||
         within(0x1f150, 0x1f169) || within(0x1f170, 0x1f189);
}

}  // namespace

std::string replaced(std::string_view text, std::string_view from, std::string_view by) {
  std::string made;
  made.reserve(text.size());
  for (;;) {
    const std::size_t at = text.find(from);
    made += text.substr(0, at);
    if (at == std::string_view::npos) return made;
    made += by;
    text.remove_prefix(at + from.size());
  }
}

std::size_t character_bytes(std::string_view text) { return character(text).bytes; }

bool begins_with_word(std::string_view text) {
  return !text.empty() && is_of_word(text.substr(0, character_bytes(text)));
}

bool ends_with_word(std::string_view text) {
  std::size_t last = text.size();
  while (last > 0 && (text[--last] & 0xc0) == 0x80) {
  }
  return !text.empty() && is_of_word(text.substr(last));
}

std::string with_valid_utf8(std::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  while (!text.empty()) {
    const auto beyond = std::ranges::find_if(text, [](char c) { return (c & 0x80) != 0; });
    const auto plain = std::size_t(beyond - text.begin());
    valid += text.substr(0, plain);
    text.remove_prefix(plain);
    if (text.empty()) break;
    const Character next = character(text);
    valid += next.whole ? text.substr(0, next.bytes) : std::string_view("\xef\xbf\xbd");
    text.remove_prefix(next.bytes);
  }
  return valid;
}

std::string composed(std::string_view text) {
  if (std::ranges::none_of(text, [](char c) { return (c & 0x80) != 0; })) return std::string(text);
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             utf8proc_ssize_t(text.size()), &made,
                                             utf8proc_option_t(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(made, &std::free);
  require(size >= 0, Failure::resource, "a text cannot be normalized: {}", utf8proc_errmsg(size));
  return {reinterpret_cast<const char*>(made), std::size_t(size)};
}

std::size_t leading_space_bytes(std::string_view text) {
  std::string_view rest = text;
  for (;;) {
    const auto next =
        std::ranges::find_if(spaces, [&](std::string_view s) { return rest.starts_with(s); });
    if (next == spaces.end()) return text.size() - rest.size();
    rest.remove_prefix(next->size());
  }
}

std::size_t trailing_space_bytes(std::string_view text) {
  std::string_view rest = text;
  for (;;) {
    const auto last =
        std::ranges::find_if(spaces, [&](std::string_view s) { return rest.ends_with(s); });
    if (last == spaces.end()) return text.size() - rest.size();
    rest.remove_suffix(last->size());
  }
}

}  // namespace brume::tokenizer
