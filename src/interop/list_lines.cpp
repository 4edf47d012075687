#include "list_lines.hpp"

#include "deck/json.hpp"

namespace brume::interop {

bool begins_with_brace(std::string_view text) {
  const std::size_t first = text.find_first_not_of(deck::json_spaces);
  return first != text.npos && text[first] == '{';
}

bool ListLines::begins(std::string_view text) {
  const std::size_t bracket = text.find('[');
  return bracket == text.find_first_not_of(deck::json_spaces) && bracket != text.npos &&
         begins_with_brace(text.substr(bracket + 1));
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
    if (depth_ <= 1 && deck::json_spaces.find(c) != deck::json_spaces.npos) continue;
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
