#include "step_directories.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <system_error>

#include "base/log.hpp"

namespace brume::io {
namespace {

namespace fs = std::filesystem;

}  // namespace

std::int64_t number_in(std::string_view name, std::string_view prefix, std::string_view suffix) {
  if (!name.starts_with(prefix) || !name.ends_with(suffix)) return -1;
  name.remove_prefix(prefix.size());
  if (name.size() <= suffix.size() || name.size() > suffix.size() + 15) return -1;
  name.remove_suffix(suffix.size());
  const bool digits = std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; });
  return digits ? std::stoll(std::string(name)) : -1;
}

std::int64_t step_of(const fs::path& directory) {
  return number_in(directory.filename().string(), "step-", "");
}

std::vector<std::int64_t> steps_in(const fs::path& checkpoints) {
  std::vector<std::int64_t> steps;
  std::error_code error;
  for (fs::directory_iterator at(checkpoints, error), end; !error && at != end; at.increment(error))
    if (const std::int64_t step = step_of(at->path()); step >= 0) steps.push_back(step);
  std::ranges::sort(steps, std::greater<>());
  return steps;
}

void remove_unfinished_steps(const fs::path& checkpoints) {
  std::error_code error;
  std::vector<fs::path> found;
  for (fs::directory_iterator at(checkpoints, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with("step-") && name.ends_with(".tmp")) found.push_back(at->path());
  }
  for (const fs::path& path : found) {
    fs::remove_all(path, error);
    if (error) log::warn("{}: cannot be removed: {}", path.string(), error.message());
  }
}

fs::path step_directory(const fs::path& checkpoints, std::int64_t step) {
  return checkpoints / fmt::format("step-{}", step);
}

}  // namespace brume::io
