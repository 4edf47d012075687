#include "characters.hpp"

#include <utf8proc.h>

#include <algorithm>

#include "budget.hpp"

namespace brume::chat {
namespace {

constexpr char32_t replacement = 0xfffd;

bool ends_line(char32_t point) {
  return (point >= 0x0a && point <= 0x0d) || (point >= 0x1c && point <= 0x1e) || point == 0x85 ||
         point == 0x2028 || point == 0x2029;
}

utf8proc_category_t category(char32_t point) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(point));
}

/// The code point that a text begins with, which is removed.
char32_t take(std::string_view& text) {
  utf8proc_int32_t point = 0;
  const utf8proc_ssize_t bytes =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                       utf8proc_ssize_t(text.size()), &point);
  text.remove_prefix(bytes > 0 ? std::size_t(bytes) : 1);
  return bytes > 0 ? static_cast<char32_t>(point) : replacement;
}

}  // namespace

std::u32string code_points(std::string_view text) {
  charge(text.size() * sizeof(char32_t));
  std::u32string points;
  points.reserve(text.size());
  while (!text.empty()) points += take(text);
  return points;
}

std::string utf8(std::u32string_view points) {
  std::string text;
  text.reserve(points.size());
  for (const char32_t point : points) {
    utf8proc_uint8_t bytes[4];
    const utf8proc_ssize_t count =
        utf8proc_encode_char(static_cast<utf8proc_int32_t>(point), bytes);
    text.append(reinterpret_cast<const char*>(bytes), std::size_t(count));
  }
  return text;
}

bool is_space(char32_t point) {
  return ends_line(point) || point == ' ' || point == '\t' || point == 0x1f ||
         category(point) == UTF8PROC_CATEGORY_ZS;
}

bool is_letter(char32_t point) {
  const utf8proc_category_t kind = category(point);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

bool is_digit(char32_t point) { return category(point) == UTF8PROC_CATEGORY_ND; }

bool is_printable(char32_t point) {
  switch (category(point)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    case UTF8PROC_CATEGORY_ZS: return point == ' ';
    default: return true;
  }
}

char32_t upper(char32_t point) {
  return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(point)));
}

char32_t lower(char32_t point) {
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(point)));
}

std::string changed(std::string_view text, char32_t (*change)(char32_t)) {
  std::u32string points = code_points(text);
  std::ranges::transform(points, points.begin(), change);
  return utf8(points);
}

std::string capitalized(std::string_view text) {
  std::u32string points = code_points(text);
  std::ranges::transform(points, points.begin(), lower);
  if (!points.empty()) points.front() = upper(points.front());
  return utf8(points);
}

std::size_t leading_space_bytes(std::string_view text) {
  for (std::string_view rest = text;;) {
    const std::size_t before = text.size() - rest.size();
    if (rest.empty() || !is_space(take(rest))) return before;
  }
}

std::size_t trailing_space_bytes(std::string_view text) {
  for (std::string_view rest = text;;) {
    std::size_t last = rest.size();
    while (last > 0 && (rest[--last] & 0xc0) == 0x80) {
    }
    std::string_view point = rest.substr(last);
    if (rest.empty() || !is_space(take(point)) || !point.empty()) return text.size() - rest.size();
    rest = rest.substr(0, last);
  }
}

std::string stripped(std::string_view text, Ends ends, std::string_view set) {
  const std::u32string points = code_points(text), chosen = code_points(set);
  std::u32string_view left = points;
  const auto goes = [&](char32_t point) {
    return set.empty() ? is_space(point) : chosen.find(point) != chosen.npos;
  };
  while (ends != Ends::right && !left.empty() && goes(left.front())) left.remove_prefix(1);
  while (ends != Ends::left && !left.empty() && goes(left.back())) left.remove_suffix(1);
  return utf8(left);
}

std::vector<std::string> lines(std::string_view text) {
  const std::u32string points = code_points(text);
  std::vector<std::string> found;
  for (std::size_t begin = 0; begin < points.size();) {
    std::size_t end = begin;
    while (end < points.size() && !ends_line(points[end])) ++end;
    found.push_back(utf8(std::u32string_view(points).substr(begin, end - begin)));
    const bool pair = end + 1 < points.size() && points[end] == '\r' && points[end + 1] == '\n';
    begin = end + (pair ? 2 : 1);
  }
  return found;
}

}  // namespace brume::chat
