/// @file A file to which whole records are appended.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/descriptor.hpp"

namespace brume::io {

/// A record is whole or not there, whether its write fails or is repeated; a kill may cut the last
/// one. A link is followed as OutputFile does. @throws Error(storage) from every call
class AppendedFile {
 public:
  /// Opens the file, or makes it with the rights 0640 less those of the umask.
  explicit AppendedFile(const std::filesystem::path& path);

  /// Keeps it for this process until the file is closed. @return false if another one has it
  bool lock();
  void append(std::string_view record);
  void cut(std::int64_t bytes);  ///< forgets what lies behind so many

 private:
  std::string name_;
  Descriptor file_;
  std::int64_t bytes_ = 0;
};

}  // namespace brume::io
