#include "profiler/profiler.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>
#include <vector>

#include "base/error.hpp"

namespace brume::profiler {
namespace {

using hardware::ProfileKey;

const ProfileKey one_key{.processor = "a processor, 8 cores",
                         .packages = "one 1.0, two 2.0",
                         .ranks_per_node = 4,
                         .threads_per_rank = 2,
                         .binding = "not bound",
                         .model = "gpt C64"};

TEST(ProfileHash, AnyFieldChangesIt) {
  const std::vector<std::function<void(ProfileKey&)>> changes{
      [](ProfileKey& k) { k.processor += "x"; }, [](ProfileKey& k) { k.packages = "one 1.1"; },
      [](ProfileKey& k) { k.ranks_per_node = 2; }, [](ProfileKey& k) { k.threads_per_rank = 4; },
      [](ProfileKey& k) { k.binding = ""; }, [](ProfileKey& k) { k.model = "gpt C65"; },
      [](ProfileKey& k) { std::swap(k.ranks_per_node, k.threads_per_rank); },
      [](ProfileKey& k) { std::swap(k.binding, k.model); },
      // The same letters, cut into fields elsewhere.
      [](ProfileKey& k) { k.binding = "not boundg", k.model = "pt C64"; }};
  std::set<std::uint64_t> hashes{hash(one_key)};
  for (const auto& change : changes) {
    ProfileKey key = one_key;
    change(key);
    EXPECT_TRUE(hashes.insert(hash(key)).second);
  }
  EXPECT_EQ(hash(one_key), hash(ProfileKey(one_key)));
}

/// An environment variable for the time of a test.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() { old_.empty() ? ::unsetenv(name_) : ::setenv(name_, old_.c_str(), 1); }

 private:
  const char* name_;
  std::string old_;
};

TEST(ProfileCache, FollowsTheEnvironment) {
  const Variable home("HOME", "/a/home");
  const std::string file = fmt::format("profile-{:016x}.toml", hash(one_key));
  {
    const Variable cache("XDG_CACHE_HOME", "/a/cache");
    EXPECT_EQ(cache_path(one_key), "/a/cache/brume/" + file);
  }
  const Variable cache("XDG_CACHE_HOME", "");
  EXPECT_EQ(cache_path(one_key), "/a/home/.cache/brume/" + file);
}

TEST(ProfileCache, MakesItsFolders) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("brume-profile-{}", ::getpid());
  const Variable variable("XDG_CACHE_HOME", (folder / "not" / "there").string());
  hardware::Profile profile;
  profile.key = one_key;
  profile.flops_per_s = 1.5e9;
  cache(profile);
  EXPECT_EQ(hardware::load_profile(cache_path(one_key)).flops_per_s, 1.5e9);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace brume::profiler
