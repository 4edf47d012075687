/// @file Where the profiles lie that come with the program.
#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/error.hpp"
#include "base/text.hpp"
#include "hardware/profile.hpp"

namespace brume::hardware {
namespace {

namespace fs = std::filesystem;

/// Folders to look into, the first wins.
std::vector<fs::path> folders() {
  std::vector<fs::path> folders;
  if (const char* own = std::getenv("BRUME_PROFILES"); own != nullptr && *own != '\0')
    folders.emplace_back(own);
  std::error_code none;
  const fs::path program = fs::read_symlink("/proc/self/exe", none);
  if (!none) folders.push_back(program.parent_path() / BRUME_INSTALLED_PROFILES);
  folders.emplace_back(BRUME_SOURCE_PROFILES);
  return folders;
}

std::vector<std::string> shipped_names() {
  std::vector<std::string> names;
  for (const fs::path& folder : folders()) {
    std::error_code none;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, none))
      if (entry.path().extension() == ".toml") names.push_back(entry.path().stem().string());
  }
  std::ranges::sort(names);
  const auto repeated = std::ranges::unique(names);
  names.erase(repeated.begin(), repeated.end());
  return names;
}

}  // namespace

std::string profile_path(const std::string& name) {
  std::error_code none;
  if (fs::is_regular_file(name, none)) return name;
  const bool bare = name.find('/') == std::string::npos && !name.ends_with(".toml");
  if (bare)
    for (const fs::path& folder : folders())
      if (const fs::path path = folder / (name + ".toml"); fs::is_regular_file(path, none))
        return path.string();
  const std::vector<std::string> names = shipped_names();
  const std::string near = bare ? nearest(name, names) : "";
  throw Error(Failure::input, "profile '{}': no such file, and none that comes with brume: {}{}",
              name, names.empty() ? "there are none" : fmt::format("{}", fmt::join(names, ", ")),
              near.empty() ? "" : "; did you mean '" + near + "'?");
}

}  // namespace brume::hardware
