#include "device/control_group.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace brume::device {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max();

/// Names of a version's files, and of the line in memory.stat.
struct Version {
  const char *limit, *usage, *reclaimable;
};
constexpr Version version_1{"memory.limit_in_bytes", "memory.usage_in_bytes",
                            "total_inactive_file"};
constexpr Version version_2{"memory.max", "memory.current", "inactive_file"};

/// The number that a file begins with; none where there is no file, or a word as "max".
std::optional<std::int64_t> number_in(const fs::path& path) {
  std::int64_t number = 0;
  std::ifstream file(path);
  return file >> number ? std::optional(number) : std::nullopt;
}

std::int64_t number_after(const std::string& key, const fs::path& path) {
  std::ifstream file(path);
  std::int64_t number = 0;
  for (std::string word; file >> word >> number;)
    if (word == key) return number;
  return 0;
}

std::int64_t free_bytes(const fs::path& group, const Version& version) {
  const auto limit = number_in(group / version.limit), usage = number_in(group / version.usage);
  if (!limit || !usage) return unlimited;
  const std::int64_t reclaimable = number_after(version.reclaimable, group / "memory.stat");
  return std::max<std::int64_t>(*limit - std::max<std::int64_t>(*usage - reclaimable, 0), 0);
}

std::int64_t limit_bytes(const fs::path& group, const Version& version) {
  return number_in(group / version.limit).value_or(unlimited);
}

using BytesOf = std::int64_t (*)(const fs::path& group, const Version& version);

/// The least of a group and those above it. Within a container the root is its own group, and what
/// the process believes to be its path may not be there.
std::int64_t least_bytes(const fs::path& root, const std::string& path, const Version& version,
                         BytesOf of) {
  std::int64_t least = of(root, version);
  fs::path group = root;
  for (const fs::path& part : fs::path(path).relative_path()) {
    group /= part;
    least = std::min(least, of(group, version));
  }
  return least;
}

std::int64_t least_bytes(const fs::path& membership, const fs::path& root, BytesOf of) {
  std::int64_t least = unlimited;
  std::ifstream file(membership);
  // Lines are "number:controllers:path"; version 2 has the number 0 and names no controllers.
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,")
      least = std::min(least, least_bytes(root, path, version_2, of));
    else if (controllers.find(",memory,") != std::string::npos)
      least = std::min(least, least_bytes(root / "memory", path, version_1, of));
  }
  return least;
}

}  // namespace

std::int64_t control_group_free_bytes(const fs::path& membership, const fs::path& root) {
  return least_bytes(membership, root, free_bytes);
}

std::int64_t control_group_limit_bytes(const fs::path& membership, const fs::path& root) {
  return least_bytes(membership, root, limit_bytes);
}

}  // namespace brume::device
