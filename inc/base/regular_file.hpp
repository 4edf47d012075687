/// @file Reads a whole file that somebody else may have made.
#pragma once

#include <cstddef>
#include <string>

namespace brume {

/// The bytes of a regular file: a folder, a pipe or a device is refused and not waited for.
///
/// @throws Error(input) naming the file, when it cannot be read or is larger
std::string read_regular_file(const std::string& path, std::size_t most_bytes);

}  // namespace brume
