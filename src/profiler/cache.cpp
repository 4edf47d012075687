/// @file Measured profiles of this user, kept from one job to the next.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "base/error.hpp"
#include "base/files.hpp"
#include "profiler/profiler.hpp"

namespace brume::profiler {
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

/// @throws Error(input) naming the first field in which the keys differ
void require_key(const hardware::ProfileKey& wanted, const hardware::ProfileKey& found,
                 const std::string& path) {
  const auto same = [&](const char* name, const auto& want, const auto& have) {
    require(want == have, Failure::input, "{}: key.{} is '{}', but '{}' is wanted", path, name,
            have, want);
  };
  same("processor", wanted.processor, found.processor);
  same("packages", wanted.packages, found.packages);
  same("ranks_per_node", wanted.ranks_per_node, found.ranks_per_node);
  same("threads_per_rank", wanted.threads_per_rank, found.threads_per_rank);
  same("binding", wanted.binding, found.binding);
  same("model", wanted.model, found.model);
}

}  // namespace

std::string cache_path(const hardware::ProfileKey& key) {
  return cache_directory() / "brume" / fmt::format("profile-{:016x}.toml", hash(key));
}

void cache(const hardware::Profile& profile) {
  const std::filesystem::path path = cache_path(profile.key), folder = path.parent_path();
  make_directory(folder.parent_path());
  const bool made = ::mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST;
  require(made, Failure::storage, "cannot make '{}': {}", folder.string(), last_error());
  require_own(folder, S_IFDIR);
  hardware::save_profile(profile, path);
}

std::optional<hardware::Profile> cached(const hardware::ProfileKey& key) {
  const std::filesystem::path path = cache_path(key);
  std::error_code unseen;
  if (std::filesystem::symlink_status(path, unseen).type() == std::filesystem::file_type::not_found)
    return std::nullopt;
  require_own(path.parent_path(), S_IFDIR);
  require_own(path, S_IFREG);
  hardware::Profile profile = hardware::load_profile(path);
  require_key(key, profile.key, path);
  return profile;
}

}  // namespace brume::profiler
