/// @file Measured profiles of this user, kept from one job to the next.
#include <fmt/format.h>

#include "base/cache.hpp"
#include "base/error.hpp"
#include "profiler/profiler.hpp"

namespace brume::profiler {
namespace {

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
  return brume::cache_path(fmt::format("profile-{:016x}.toml", hash(key)));
}

void cache(const hardware::Profile& profile) {
  make_cache();
  hardware::save_profile(profile, cache_path(profile.key));
}

std::optional<hardware::Profile> cached(const hardware::ProfileKey& key) {
  const std::string path = cache_path(key);
  if (!is_cached(path)) return std::nullopt;
  hardware::Profile profile = hardware::load_profile(path);
  require_key(key, profile.key, path);
  return profile;
}

}  // namespace brume::profiler
