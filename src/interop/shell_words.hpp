/// @file Words of a shell script that starts a program, without running it.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace brume::interop {

struct ShellWord {
  std::string text;
  /// Whether the script may leave the word out: it is in an if, a case or a loop, or follows a test
  /// by && or ||.
  bool in_branch = false;
};

struct ShellScript {
  std::vector<ShellWord> words;
  /// Variables to which branches give several values, all that they may have. Words keep their
  /// names.
  std::map<std::string, std::set<std::string>> ambiguous;
};

/// The words of a script in their order: comments left out, lines that a backslash continues
/// joined, and variables replaced where the script itself gives them a value before (`NAME=VALUE`,
/// `${NAME:-VALUE}`). Quotes are taken off and words within them parted, as they are where an array
/// is expanded without quotes. Other variables and what only a shell can know stay as they are
/// written. Assignments, brackets and operators are no words.
ShellScript shell_script(std::string_view script);

}  // namespace brume::interop
