/// @file Files of a checkpoint with what training does not change: the next one links to them.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace brume::io {

/// Files that hold all constant parameters, and nothing else.
class ConstantFiles {
 public:
  /// @param constants  names of the parameters
  /// @param folder     in which links are to be made
  /// @return nothing where a checkpoint has no such files, cannot be read, or no link is possible
  static std::optional<ConstantFiles> find(const std::filesystem::path& checkpoint,
                                           const std::set<std::string>& constants,
                                           const std::filesystem::path& folder);

  /// Makes hard links frozen-0.h5, frozen-1.h5, ... @throws Error(storage), also where a file is
  /// not the one that was found
  void link_in(const std::filesystem::path& checkpoint) const;

  /// Their entries in the manifest of that checkpoint, [file].
  const std::vector<std::string>& entries() const { return entries_; }

 private:
  struct File {
    std::filesystem::path path;
    struct stat status;
  };

  std::vector<File> files_;
  std::vector<std::string> entries_;
};

}  // namespace brume::io
