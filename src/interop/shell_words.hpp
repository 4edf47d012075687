/// @file Words of a shell script that starts a program, without running it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace brume::interop {

/// The words of a script in their order: comments left out, lines that a backslash continues
/// joined, and variables replaced where the script itself gives them a value before (`NAME=VALUE`,
/// `${NAME:-VALUE}`). Quotes are taken off and words within them parted, as they are where an array
/// is expanded without quotes. Other variables and what only a shell can know stay as they are
/// written. Assignments, brackets and operators are no words.
std::vector<std::string> shell_words(std::string_view script);

}  // namespace brume::interop
