#include "base/cache.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "base/error.hpp"
#include "base/files.hpp"

namespace brume {
namespace {

std::filesystem::path cache_directory() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/')
    return cache;  // the convention: a relative path is no answer
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    return std::filesystem::path(home) / ".cache";
  return std::filesystem::temp_directory_path();
}

/// @param kind  S_IFREG or S_IFDIR
/// @throws Error(storage) unless `path` is of this kind, this user's, and nobody else's to write to
void require_own(const std::string& path, mode_t kind) {
  struct ::stat found {};
  const bool known = ::stat(path.c_str(), &found) == 0;  // before its error is asked for
  require(known, Failure::storage, "cannot look at '{}': {}", path, last_error());
  require((found.st_mode & S_IFMT) == kind, Failure::storage, "'{}' is no {}", path,
          kind == S_IFREG ? "regular file" : "folder");
  require(found.st_uid == ::geteuid(), Failure::storage,
          "'{}' belongs to user {}, not to you (user {}): set XDG_CACHE_HOME to a folder of yours",
          path, found.st_uid, ::geteuid());
  require((found.st_mode & (S_IWGRP | S_IWOTH)) == 0, Failure::storage,
          "others may write to '{}': say chmod go-w to use it", path);
}

}  // namespace

std::filesystem::path cache_path(const std::string& name) {
  return cache_directory() / "brume" / name;
}

void make_cache() {
  const std::filesystem::path folder = cache_path("").parent_path();
  make_directory(folder.parent_path());
  const bool made = ::mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST;
  require(made, Failure::storage, "cannot make '{}': {}", folder.string(), last_error());
  require_own(folder, S_IFDIR);
}

bool is_cached(const std::filesystem::path& path) {
  std::error_code unseen;
  if (std::filesystem::symlink_status(path, unseen).type() == std::filesystem::file_type::not_found)
    return false;
  require_own(path.parent_path(), S_IFDIR);
  require_own(path, S_IFREG);
  return true;
}

}  // namespace brume
