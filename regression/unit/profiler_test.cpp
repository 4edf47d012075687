#include "profiler/profiler.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <random>
#include <set>
#include <vector>

#include "base/error.hpp"
#include "profiler/interference_fit.hpp"

namespace brume::profiler {
namespace {

using hardware::Interference;
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

// --- interference -------------------------------------------------------------------------------

/// What the model says when q and j start together: the loser of the race ends at full speed.
CoRun simulate(const Interference& model, int q, double alone_q, int j, double alone_j) {
  CoRun run;
  run.alone_s[q] = alone_q;
  run.alone_s[j] = alone_j;
  const double end_q = alone_q * (1.0 + model.added[q][j]);
  const double end_j = alone_j * (1.0 + model.added[j][q]);
  const double end_s = model.overlapped_s(run.alone_s);
  run.done_s[q] = end_q <= end_j ? end_q : end_s;
  run.done_s[j] = end_q <= end_j ? end_s : end_j;
  return run;
}

/// Co-runs of all pairs, of different lengths.
std::vector<CoRun> simulate_all(const Interference& model) {
  std::vector<CoRun> runs;
  for (int q = 0; q < hardware::num_resources; ++q)
    for (int j = q + 1; j < hardware::num_resources; ++j)
      for (double ratio : {0.5, 1.0, 1.7})
        runs.push_back(simulate(model, q, 0.03, j, 0.03 * ratio));
  return runs;
}

Interference known_model() {
  Interference model;
  std::mt19937 random(5);
  std::uniform_real_distribution<double> added(0.0, 3.0);
  for (int q = 0; q < hardware::num_resources; ++q)
    for (int j = 0; j < hardware::num_resources; ++j)
      model.added[q][j] = q == j ? 0.0 : added(random);
  return model;
}

TEST(InterferenceFit, RecoversTheModelThatMadeTheTimes) {
  const Interference model = known_model();
  const Interference fitted = fit_interference(simulate_all(model));
  for (int q = 0; q < hardware::num_resources; ++q)
    for (int j = 0; j < hardware::num_resources; ++j)
      EXPECT_NEAR(fitted.added[q][j], model.added[q][j], 1e-9) << q << " beside " << j;
}

TEST(InterferenceFit, NoiseOfAFewPercentStaysThatSmall) {
  const Interference model = known_model();
  std::mt19937 random(6);
  std::uniform_real_distribution<double> noise(0.98, 1.02);
  std::vector<CoRun> runs;
  for (int i = 0; i < 50; ++i)
    for (CoRun run : simulate_all(model)) {
      const double factor = noise(random);
      for (double& done_s : run.done_s) done_s *= factor;
      runs.push_back(run);
    }
  const Interference fitted = fit_interference(runs);
  for (int q = 0; q < hardware::num_resources; ++q)
    for (int j = 0; j < hardware::num_resources; ++j)
      EXPECT_NEAR((1.0 + fitted.added[q][j]) / (1.0 + model.added[q][j]), 1.0, 0.05);
}

// Two slowdowns 2 and 4: sum 1/s = 3/4, sum 1/s^2 = 5/16, so 1 + a = 12/5.
// Three at once that take longer than pairs explain: the fit gives way towards them.
TEST(InterferenceFit, LearnsFromMoreThanPairs) {
  Interference model;
  for (int q = 0; q < hardware::num_resources; ++q)
    for (int j = 0; j < hardware::num_resources; ++j) model.added[q][j] = q == j ? 0.0 : 0.5;
  std::vector<CoRun> runs = simulate_all(model);
  CoRun three;
  three.alone_s = {1.0, 1.0, 1.0, 0.0};
  const double by_pairs_s = model.overlapped_s(three.alone_s);
  three.done_s = {1.5 * by_pairs_s, 1.5 * by_pairs_s, 1.5 * by_pairs_s, 0.0};
  runs.insert(runs.end(), 20, three);

  const double fitted_s = fit_interference(runs).overlapped_s(three.alone_s);

  EXPECT_GT(fitted_s, 1.25 * by_pairs_s);
  EXPECT_LE(fitted_s, 1.55 * by_pairs_s);
}

TEST(InterferenceFit, ErrorsAreRelative) {
  CoRun twice, four_times;
  twice.alone_s = four_times.alone_s = {1.0, 0.0, 8.0, 0.0};
  twice.done_s = {2.0, 0.0, 9.0, 0.0};
  four_times.done_s = {4.0, 0.0, 9.0, 0.0};
  EXPECT_NEAR(fit_interference(std::vector{twice, four_times}).added[0][2], 1.4, 1e-12);
}

TEST(InterferenceFit, ASpeedUpIsNoInterference) {
  CoRun run;
  run.alone_s = {1.0, 1.0, 0.0, 0.0};
  run.done_s = {0.9, 0.95, 0.0, 0.0};
  const Interference fitted = fit_interference(std::vector{run});
  EXPECT_EQ(fitted.added[0][1], 0.0);
  EXPECT_EQ(fitted.added[1][0], 0.0);
}

TEST(InterferenceFit, NothingMeasuredIsNoInterference) {
  for (const auto& row : fit_interference({}).added)
    for (double added : row) EXPECT_EQ(added, 0.0);
}

TEST(InterferenceFit, ALoneTaskIsNoCoRun) {
  CoRun run;
  run.alone_s[1] = run.done_s[1] = 1.0;
  EXPECT_THROW(fit_interference(std::vector{run}), Error);
}

}  // namespace
}  // namespace brume::profiler
