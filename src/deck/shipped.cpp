/// @file Where the profiles, machines, devices and networks lie that come with the program.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"
#include "deck/machine.hpp"

namespace brume::deck {
namespace {

namespace fs = std::filesystem;

struct Kind {
  const char* word;
  const char* folder;
};

Kind kind_of(Shipped kind) {
  switch (kind) {
    case Shipped::profile: return {"profile", ""};
    case Shipped::machine: return {"machine", "machines"};
    case Shipped::device: return {"device", "devices"};
    case Shipped::network: return {"network", "networks"};
  }
  return {"", ""};
}

/// Folders to look into, the first wins.
std::vector<fs::path> folders(Shipped kind) {
  std::vector<fs::path> folders;
  if (const char* own = std::getenv("BRUME_PROFILES"); own != nullptr && *own != '\0')
    folders.emplace_back(own);
  std::error_code none;
  const fs::path program = fs::read_symlink("/proc/self/exe", none);
  if (!none) folders.push_back(program.parent_path() / BRUME_INSTALLED_PROFILES);
  folders.emplace_back(BRUME_SOURCE_PROFILES);
  for (fs::path& folder : folders) folder /= kind_of(kind).folder;
  return folders;
}

std::vector<std::string> shipped_names(Shipped kind) {
  std::vector<std::string> names;
  for (const fs::path& folder : folders(kind)) {
    std::error_code none;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, none))
      if (entry.path().extension() == ".toml") names.push_back(entry.path().stem().string());
  }
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace

std::string shipped_path(Shipped kind, const std::string& name) {
  std::error_code none;
  if (fs::is_regular_file(name, none)) return name;
  const bool bare = name.find('/') == std::string::npos && !name.ends_with(".toml");
  if (bare)
    for (const fs::path& folder : folders(kind))
      if (const fs::path path = folder / (name + ".toml"); fs::is_regular_file(path, none))
        return path.string();
  const std::vector<std::string> names = shipped_names(kind);
  const std::string near = bare ? nearest(name, names) : "";
  throw Error(Failure::input, "{} '{}' not found{} Shipped: {}", kind_of(kind).word, name,
              near.empty() ? "." : "; did you mean '" + near + "'?",
              names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
}

}  // namespace brume::deck
