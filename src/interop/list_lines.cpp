#include "list_lines.hpp"

namespace brume::interop {
namespace {

constexpr std::string_view byte_order_mark = "\xef\xbb\xbf", spaces = " \t\r\n";

bool is_json_space(char c) { return spaces.find(c) != spaces.npos; }

}  // namespace

bool ListLines::begins(std::string_view text) {
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  const std::size_t bracket = text.find_first_not_of(spaces);
  if (bracket == text.npos || text[bracket] != '[') return false;
  const std::size_t brace = text.find_first_not_of(spaces, bracket + 1);
  return brace != text.npos && text[brace] == '{';
}

void ListLines::take(std::string_view text, std::string& lines) {
  const auto end_entry = [&] {
    if (in_entry_) lines += '\n';
    in_entry_ = false;
  };
  for (const char c : text) {
    if (in_string_) {
      in_string_ = escaped_ || c != '"';
      escaped_ = !escaped_ && c == '\\';
      lines += c == '\n' ? ' ' : c;
      continue;
    }
    if (depth_ <= 1 && (is_json_space(c) || byte_order_mark.find(c) != byte_order_mark.npos))
      continue;
    if (depth_ == 0 && c == '[') {
      depth_ = 1;
      continue;
    }
    if (depth_ == 1 && (c == ',' || c == ']')) {
      end_entry();
      if (c == ']') depth_ = 0;
      continue;
    }
    in_entry_ = true;
    in_string_ = c == '"';
    if (c == '{' || c == '[') ++depth_;
    if (c == '}' || c == ']') --depth_;
    lines += c == '\n' ? ' ' : c;
    if (depth_ == 1 && (c == '}' || c == ']')) end_entry();
  }
}

}  // namespace brume::interop
