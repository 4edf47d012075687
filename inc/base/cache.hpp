/// @file Files that this user keeps between jobs.
#pragma once

#include <filesystem>
#include <string>

namespace brume {

/// A path in the cache folder: brume/NAME in $XDG_CACHE_HOME, or in ~/.cache.
std::filesystem::path cache_path(const std::string& name);

/// Makes that folder, for this user alone, unless it is there.
/// @throws Error(storage)  also where the folder is not this user's, or others may write to it
void make_cache();

/// Whether there is a file at a path of that folder.
/// @throws Error(storage)  when the file or its folder is not this user's, or others may write to
///                         it: they could have planted it
bool is_cached(const std::filesystem::path& path);

}  // namespace brume
