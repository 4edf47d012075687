/// @file A list of JSON as lines, an entry each.
#pragma once

#include <string>
#include <string_view>

namespace brume::interop {

/// Whether a text begins with '{', behind spaces.
bool begins_with_brace(std::string_view text);

/// Turns the text of a list, which comes in parts, into lines: one of each entry, without the
/// list's own brackets and commas. What is no JSON stays so, and fails where its line is read.
class ListLines {
 public:
  /// Appends lines, or parts of them, to `lines`.
  void take(std::string_view text, std::string& lines);

  /// Whether a text begins as a list of objects does, without a byte order mark.
  static bool begins(std::string_view text);

 private:
  int depth_ = 0;  ///< brackets and braces that are open: 1 between entries
  bool in_string_ = false, escaped_ = false;
  bool in_entry_ = false;  ///< a part of an entry was handed out, but not its end
};

}  // namespace brume::interop
