/// @file A folder of a test's own: tests ask for no path outside it but those of the kernel (/proc,
/// /sys, /dev), which no user makes.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace brume::test {

/// Has a name that nothing else has, and is removed with all that is in it.
class OwnFolder {
 public:
  explicit OwnFolder(const std::filesystem::path& in = std::filesystem::temp_directory_path()) {
    std::string name = in / "brume-test-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder " + name);
    path_ = name;
  }
  ~OwnFolder() { std::filesystem::remove_all(path_); }
  OwnFolder(const OwnFolder&) = delete;
  OwnFolder& operator=(const OwnFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace brume::test
