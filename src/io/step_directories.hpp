/// @file Directories of checkpoints: their names, a list of them, the removal of unfinished ones.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

namespace brume::io {

/// Number R of a name <prefix>R<suffix>; -1 for another name.
std::int64_t number_in(std::string_view name, std::string_view prefix, std::string_view suffix);

/// N of a directory step-N; -1 when the name is another.
std::int64_t step_of(const std::filesystem::path& directory);

/// Steps of the directories step-N, newest first.
std::vector<std::int64_t> steps_in(const std::filesystem::path& checkpoints);

/// Removes the leftovers of killed jobs and replaced generations: all step-*.tmp.
void remove_unfinished_steps(const std::filesystem::path& checkpoints);

std::filesystem::path step_directory(const std::filesystem::path& checkpoints, std::int64_t step);

}  // namespace brume::io
