/// @file Targets and contents of paths.
#pragma once

#include <filesystem>
#include <string_view>

namespace brume {

/// The file that OutputFile writes to: a path with its links followed. @throws Error(storage)
std::filesystem::path followed(const std::filesystem::path& path);

/// Whether a path has a word that only a shell expands: "~" at its begin, or "$NAME".
bool has_shell_word(std::string_view path);

}  // namespace brume
