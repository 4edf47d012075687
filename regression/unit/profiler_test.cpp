#include "profiler/profiler.hpp"

#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "../../src/comm/host_half.hpp"
#include "../../src/profiler/network.hpp"
#include "../../src/profiler/operators.hpp"
#include "../../src/profiler/pairs.hpp"
#include "../../src/profiler/transfers.hpp"
#include "base/error.hpp"
#include "base/host.hpp"
#include "comm/communicator.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "model/model.hpp"
#include "refusal.hpp"

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

const model::Config tiny{.num_layers = 2,
                         .hidden_size = 64,
                         .num_heads = 4,
                         .ffn_size = 256,
                         .seq_len = 32,
                         .vocab_size = 96};

/// The key of two ranks that are threads.
ProfileKey key_of_threads(int ranks_per_node) {
  ProfileKey made;
  comm::run_local(2, [&](comm::Communicator& world) {
    const ProfileKey mine = key(world, ranks_per_node, 1, tiny, {});
    if (world.rank() == 0) made = mine;
  });
  return made;
}

// Between threads messages are copies in one memory; the test on MPI ranks finds MPI there.
TEST(ProfileKeyOf, RanksThatAreThreadsNamesNoMpi) {
  const std::string packages = key_of_threads(2).packages;
  EXPECT_NE(packages.find("threads"), std::string::npos) << packages;
  EXPECT_EQ(packages.find("MPI"), std::string::npos) << packages;
}

/// Measures on one rank of a node, for plans that may take `memory_bytes`.
hardware::Profile measure_alone(const model::Config& model, const Shapes& shapes,
                                std::int64_t memory_bytes) {
  const hardware::Cluster cluster =
      hardware::NodeGroup{.nodes = 1, .devices_per_node = 1, .memory_bytes = memory_bytes};
  hardware::Profile profile;
  comm::run_local(1, [&](comm::Communicator& world) {
    profile = measure(world, key(world, 1, 1, model, shapes), cluster, model, shapes);
  });
  return profile;
}

// A deck for larger machines: nothing is taken before it is known that it fits.
TEST(ProfilerMemory, AnOperatorBeyondThisNodeIsRefusedBeforeAnythingIsTaken) {
  model::Config wide = tiny;
  wide.num_heads = 1;
  wide.hidden_size = wide.ffn_size = int(std::sqrt(double(device::available_bytes()))) / 16 * 16;
  device::release_unused();
  const std::int64_t before = device::resident_bytes();
  const std::string what = test::refusal(
      [&] { measure_alone(wide, {.splits = {{}}, .groups = {}}, 1LL << 50); }, Failure::resource);
  EXPECT_NE(what.find("name a profile"), std::string::npos) << what;
  EXPECT_LT(device::peak_resident_bytes() - before, 64 << 20);
}

// The shapes that do not fit are left out, smaller ones of the same operator are measured.
TEST(ProfilerMemory, ShapesBeyondThisNodeAreLeftOut) {
  model::Config model = tiny;
  const int at_once = int(device::available_bytes() / (4 * model.seq_len * model.hidden_size));
  const hardware::Profile profile =
      measure_alone(model, {.splits = {{1, at_once}, {1, 1}}, .groups = {}}, 1LL << 50);
  const auto rows_of = [&](std::int64_t tokens) {
    return std::ranges::count_if(profile.operators, [&](const hardware::OperatorRow& row) {
      return row.kind == "matmul" && row.dims[0] == tokens;
    });
  };
  EXPECT_GT(rows_of(model.seq_len), 0);
  EXPECT_EQ(rows_of(std::int64_t(at_once) * model.seq_len), 0);
}

// Of a model in fp8 the layers' products are measured with their factors rounded, the head's as in
// bf16.
TEST(Profiler, ProductsInEightBitsHaveRowsOfTheirOwn) {
  model::Config model = tiny;
  model.precision = model::Precision::fp8;
  const hardware::Profile profile =
      measure_alone(model, {.splits = {{1, 1}}, .groups = {}}, 1LL << 30);
  using Rows = std::set<std::vector<std::int64_t>>;
  Rows narrow, wide;
  for (const hardware::OperatorRow& row : profile.operators) {
    if (row.kind == "matmul_fp8") narrow.insert(row.dims);
    if (row.kind == "matmul") wide.insert(row.dims);
  }
  EXPECT_EQ(narrow, (Rows{{32, 192, 64}, {32, 64, 64}, {32, 256, 64}, {32, 64, 256}}));
  EXPECT_EQ(wide, (Rows{{32, 96, 64}}));
  EXPECT_GT(profile.fp8_flops_per_s, 0.0);
  // Where ranks compute on the processor, nothing is beside them.
  EXPECT_EQ(profile.host_updates_per_s > 0.0, device::on_device());
}

// Passes of one and of 32 tokens: products of few rows, logits, and attention to kept keys.
TEST(Profiler, PassesOfGenerationAreMeasuredForward) {
  Shapes shapes{.splits = {}, .groups = {}};
  for (const int tokens : {1, 32})
    shapes.passes.push_back(
        {.model = model::generating(tiny, {.tokens = tokens, .sequences = tokens, .blocks = 1}),
         .split = {}});
  const hardware::Profile profile = measure_alone(tiny, shapes, 1LL << 30);
  std::map<std::string, std::set<std::vector<std::int64_t>>> rows;
  for (const hardware::OperatorRow& row : profile.operators) {
    rows[row.kind].insert(row.dims);
    EXPECT_GT(row.forward_s, 0.0) << row.kind;
    EXPECT_EQ(row.backward_s, 0.0) << row.kind;
  }
  using Rows = std::set<std::vector<std::int64_t>>;
  EXPECT_EQ(rows["matmul"], (Rows{{1, 192, 64},
                                  {1, 64, 64},
                                  {1, 256, 64},
                                  {1, 64, 256},
                                  {32, 192, 64},
                                  {32, 64, 64},
                                  {32, 256, 64},
                                  {32, 64, 256}}));
  EXPECT_EQ(rows["logits"], (Rows{{1, 96, 64}, {32, 96, 64}}));
  EXPECT_EQ(rows["cached_attention"], (Rows{{32, 16, 4, 16}, {16, 32, 4, 16}}));
  EXPECT_FALSE(rows.contains("attention") || rows.contains("update"));
  EXPECT_EQ(profile.generation, 1);
  comm::run_local(1, [&](comm::Communicator& world) {
    EXPECT_NE(key(world, 1, 1, tiny, shapes).model, key(world, 1, 1, tiny, {}).model);
  });
}

// Latent features are the one key of all heads.
TEST(Profiler, AttentionToKeptKeysHasTheModelsKeyHeads) {
  model::Config grouped = tiny, latent = tiny;
  grouped.family = latent.family = &model::family("llama");
  grouped.qkv_bias = grouped.linear_bias = latent.qkv_bias = latent.linear_bias = false;
  grouped.num_kv_heads = 2;
  latent.rotary_size = 8, latent.kv_lora_rank = 24;
  for (const auto& [model, key_heads] : {std::pair(tiny, 4), {grouped, 2}, {latent, 1}}) {
    const Shapes shapes{
        .splits = {},
        .passes = {{model::generating(model, {.tokens = 16, .sequences = 16, .blocks = 1}), {}}},
        .groups = {}};
    int found = 0;
    for (const Item& item : choose_operators(model, shapes, {1 << 30, 1 << 30}).items)
      if (item.kind == model::OperatorKind::cached_attention) {
        EXPECT_EQ(item.key_heads, key_heads);
        ++found;
      }
    EXPECT_EQ(found, 2);
  }
}

// A parameter takes 30 bytes of memory, which no computer moves 1e12 times a second.
TEST(ProfilerBench, UpdatesOfTheHostHaveARate) {
  model::Config model = tiny;
  model.precision = model::Precision::bf16;
  comm::run_local(1, [&](comm::Communicator& world) {
    Bench bench(world, 1, 1);
    const std::optional<double> rate = measure_host_updates(bench, model);
    ASSERT_TRUE(rate.has_value());
    EXPECT_GT(*rate, 1e6);
    EXPECT_LT(*rate, 1e12);
  });
}

// The other rank is in the same collective, and nothing would wake it.
TEST(ProfilerBench, ARankThatFailsAloneInACollectiveEndsTheJob) {
  const std::string what = test::refusal(
      [] {
        comm::run_local(2, [](comm::Communicator& world) {
          Bench bench(world, 2, 1);
          int calls = 0;
          bench.seconds("sum", with_peers("sum", [&] {
                          require(world.rank() == 0 || ++calls < 3, Failure::resource, "no memory");
                          world.barrier();
                        }));
        });
      },
      Failure::network);
  EXPECT_NE(what.find("sum: no memory"), std::string::npos) << what;
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

// Nodes with the same processor may have unlike memory, clocks and networks.
TEST(ProfileKeyOf, TwoQueuesOfABatchSystemDiffers) {
  const Variable cluster("SLURM_CLUSTER_NAME", "hal");
  for (const int ranks_per_node : {1, 2}) {
    const Variable queue("SLURM_JOB_PARTITION", "fast");
    const ProfileKey fast = key_of_threads(ranks_per_node);
    EXPECT_NE(fast.processor.find("'fast' of 'hal'"), std::string::npos) << fast.processor;
    EXPECT_EQ(hash(fast), hash(key_of_threads(ranks_per_node)));
    const Variable other_queue("SLURM_JOB_PARTITION", "slow");
    EXPECT_NE(hash(fast), hash(key_of_threads(ranks_per_node)));
  }
  const Variable queue("SLURM_JOB_PARTITION", "fast");
  const std::uint64_t on_hal = hash(key_of_threads(2));
  const Variable other_cluster("SLURM_CLUSTER_NAME", "sal");
  EXPECT_NE(on_hal, hash(key_of_threads(2)));
}

// Clustering modes of one processor show as NUMA nodes.
TEST(ProfileKeyOf, ANodeNamesItsSocketsAndNumaNodes) {
  const std::string processor = key_of_threads(2).processor;
  for (const char* part : {" sockets, ", " NUMA nodes, ", " cores"})
    EXPECT_NE(processor.find(part), std::string::npos) << processor;
}

/// Describes one port as Linux does.
void write_port(const std::filesystem::path& port, const char* state, const char* rate) {
  std::filesystem::create_directories(port);
  std::ofstream(port / "state") << state << '\n';
  std::ofstream(port / "rate") << rate << '\n';
}

TEST(NetworkAdapters, AlikeActivePortsAreCounted) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("brume-adapters-{}", ::getpid());
  EXPECT_TRUE(network_adapters(folder).empty());
  write_port(folder / "mlx5_0" / "ports" / "1", "4: ACTIVE", "200 Gb/sec (4X HDR)");
  write_port(folder / "mlx5_1" / "ports" / "1", "4: ACTIVE", "200 Gb/sec (4X HDR)");
  write_port(folder / "mlx5_1" / "ports" / "2", "1: DOWN", "10 Gb/sec (4X SDR)");
  write_port(folder / "mlx5_2" / "ports" / "1", "4: ACTIVE", "25 Gb/sec (1X EDR)");
  EXPECT_EQ(network_adapters(folder),
            (std::vector<std::string>{"2 x 200 Gb/sec (4X HDR)", "1 x 25 Gb/sec (1X EDR)"}));
  std::filesystem::remove_all(folder);
}

TEST(ProfileCachePath, FollowsTheEnvironment) {
  const Variable home("HOME", "/a/home");
  const std::string file = fmt::format("profile-{:016x}.toml", hash(one_key));
  {
    const Variable cache("XDG_CACHE_HOME", "/a/cache");
    EXPECT_EQ(cache_path(one_key), "/a/cache/brume/" + file);
  }
  const Variable cache("XDG_CACHE_HOME", "");
  EXPECT_EQ(cache_path(one_key), "/a/home/.cache/brume/" + file);
}

/// A cache in a folder of its own, removed at the end.
class ProfileCache : public ::testing::Test {
 protected:
  ProfileCache() { profile_.key = one_key, profile_.flops_per_s = 1.5e9; }
  ~ProfileCache() override { std::filesystem::remove_all(root_); }

  /// Why the cached profile is not used.
  std::string refused(Failure why) {
    return test::refusal([] { cached(one_key); }, why);
  }

  const std::filesystem::path root_ =
      std::filesystem::temp_directory_path() / fmt::format("brume-profile-{}", ::getpid());
  const Variable variable_{"XDG_CACHE_HOME", (root_ / "not" / "there").string()};
  const std::filesystem::path file_ = cache_path(one_key), folder_ = file_.parent_path();
  hardware::Profile profile_;
};

std::filesystem::perms rights(const std::filesystem::path& path) {
  return std::filesystem::status(path).permissions();
}

TEST_F(ProfileCache, GivesBackWhatItWasGiven) {
  EXPECT_FALSE(cached(one_key).has_value());
  cache(profile_);
  ASSERT_TRUE(cached(one_key).has_value());
  EXPECT_EQ(cached(one_key)->flops_per_s, 1.5e9);
  EXPECT_EQ(cached(one_key)->key, one_key);
}

TEST_F(ProfileCache, IsAFolderOfThisUserAlone) {
  cache(profile_);
  EXPECT_EQ(rights(folder_), std::filesystem::perms::owner_all);
}

// Whoever could write it could have planted it.
TEST_F(ProfileCache, IsNotBelievedWhereOthersMayWrite) {
  using std::filesystem::perms;
  cache(profile_);
  for (const std::filesystem::path& path : {file_, folder_})
    for (const perms others : {perms::group_write, perms::others_write}) {
      const perms before = rights(path);
      std::filesystem::permissions(path, before | others);
      EXPECT_NE(refused(Failure::storage).find("others may write to '" + path.string() + "'"),
                std::string::npos);
      std::filesystem::permissions(path, before);
    }
  EXPECT_TRUE(cached(one_key).has_value());
  std::filesystem::permissions(folder_, perms::all);
  EXPECT_NE(test::refusal([&] { cache(profile_); }, Failure::storage).find("others may write"),
            std::string::npos);
}

// Only root may give files away; for others there is nothing to try.
TEST_F(ProfileCache, OfAnotherUserIsNotBelieved) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  cache(profile_);
  for (const std::filesystem::path& path : {file_, folder_}) {
    ASSERT_EQ(::chown(path.c_str(), 65534, 65534), 0);
    EXPECT_NE(refused(Failure::storage).find("belongs to user 65534"), std::string::npos);
    ASSERT_EQ(::chown(path.c_str(), 0, 0), 0);
  }
}

// A pipe would be waited for.
TEST_F(ProfileCache, OnlyRegularFilesAreRead) {
  cache(profile_);
  std::filesystem::remove(file_);
  ASSERT_EQ(::mkfifo(file_.c_str(), 0600), 0);
  EXPECT_NE(refused(Failure::storage).find("is no regular file"), std::string::npos);
}

TEST_F(ProfileCache, OfAnotherKeyIsNotBelieved) {
  cache(profile_);
  profile_.key.processor = "another processor";
  hardware::save_profile(profile_, file_);
  EXPECT_NE(refused(Failure::input).find("key.processor is 'another processor', but 'a processor"),
            std::string::npos);
  profile_.key = one_key, profile_.key.model = "gpt C65";
  hardware::save_profile(profile_, file_);
  EXPECT_NE(refused(Failure::input).find("key.model is 'gpt C65'"), std::string::npos);
}

// Sums of such times would be infinite.
TEST_F(ProfileCache, ATimeThatNoClockShowsIsRefused) {
  for (const double seconds : {1e7, 1e308}) {
    profile_.operators = {{.kind = "matmul", .dims = {1, 1, 1}, .forward_s = seconds}};
    cache(profile_);
    EXPECT_NE(refused(Failure::input).find("forward_s"), std::string::npos);
  }
}

// --- pairs of nodes ------------------------------------------------------------------------------

TEST(Tournament, InEachRoundAllMeetAndEachMeetsEachOtherOnce) {
  for (int nodes = 2; nodes <= 65; ++nodes) {
    std::set<std::pair<int, int>> met;
    for (int round = 0; round < rounds_of(nodes); ++round) {
      int idle = 0;
      for (int node = 0; node < nodes; ++node) {
        const int other = opponent(nodes, round, node);
        ASSERT_TRUE(other >= 0 && other < nodes) << nodes;
        ASSERT_EQ(opponent(nodes, round, other), node) << nodes;
        idle += other == node;
        if (node < other && !met.insert({node, other}).second) FAIL() << nodes;
      }
      EXPECT_EQ(idle, nodes % 2);
    }
    EXPECT_EQ(int(met.size()), nodes * (nodes - 1) / 2);
  }
}

/// Of four nodes, [first, second] of each pair.
std::vector<double> times_of_four(const std::map<std::pair<int, int>, double>& times_s) {
  std::vector<double> all(16, 0.0);
  for (const auto& [pair, time_s] : times_s)
    all[std::size_t(4 * pair.first + pair.second)] = time_s;
  return all;
}

TEST(SlowPairs, AreThoseThatTakeATenthLongerThanMost) {
  std::map<std::pair<int, int>, double> times_s{{{0, 1}, 1.0}, {{0, 2}, 0.9},  {{0, 3}, 1.09},
                                                {{1, 2}, 1.0}, {{1, 3}, 1.05}, {{2, 3}, 1.0}};
  EXPECT_TRUE(slow_pairs(times_of_four(times_s), 4).empty());
  times_s[{1, 3}] = 4.0;
  times_s.erase({0, 1});  // not measured
  const std::vector<hardware::SlowPair> slow = slow_pairs(times_of_four(times_s), 4);
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_EQ(slow[0].first, 1);
  EXPECT_EQ(slow[0].second, 3);
  EXPECT_EQ(slow[0].times, 4.0);
  EXPECT_TRUE(slow_pairs(times_of_four({}), 4).empty());
}

// What was measured comes back as the price of the groups that it was measured in.
TEST(SlowPairs, AreNotCountedTwice) {
  using hardware::LinkKind;
  hardware::Profile profile;
  profile.links = {{LinkKind::send, 2, 1, 1000, 1.0},
                   {LinkKind::all_reduce, 3, 2, 1000, 2.0},
                   {LinkKind::all_reduce, 6, 2, 1000, 3.0},
                   {LinkKind::all_reduce, 1, 2, 1000, 4.0}};
  profile.slow_pairs = {{1, 2, 4.0}, {2, 5, 8.0}};
  leave_out_slow_pairs(profile, 6);
  std::vector<double> times_s;
  for (const hardware::LinkRow& row : profile.links) times_s.push_back(row.time_s);
  // Neither pair is one of consecutive nodes 0 1, 2 3, 4 5; the first one is among 0 1 2.
  EXPECT_EQ(times_s, (std::vector{1.0, 2.0 / 4.0, 3.0 / 8.0, 4.0}));
}

/// Messages between ranks 1 and 2 take 20 ms.
class WithSlowLink final : public comm::HostHalf {
 public:
  using HostHalf::HostHalf;
  void all_reduce(comm::Values values) override { host_->all_reduce(values); }
  void all_reduce(std::span<double> values, comm::Reduction reduction) override {
    host_->all_reduce(values, reduction);
  }
  void reduce_scatter(comm::Values values) override { host_->reduce_scatter(values); }
  void all_gather(comm::Values values) override { host_->all_gather(values); }
  void all_to_all(std::span<const std::byte> out, std::span<const std::size_t> out_bytes,
                  std::span<std::byte> in, std::span<const std::size_t> in_bytes) override {
    host_->all_to_all(out, out_bytes, in, in_bytes);
  }
  void send(comm::ConstValues values, int peer) override {
    if (rank() * peer == 2) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    host_->send(values, peer);
  }
  void recv(comm::Values values, int peer) override { host_->recv(values, peer); }
  std::unique_ptr<comm::Communicator> split(int colour, int key) override {
    auto group = host_->split(colour, key);
    return group ? std::make_unique<WithSlowLink>(std::move(group)) : nullptr;
  }
};

TEST(SlowPairs, AreFoundAmongNodesOfARank) {
  if (device::on_device()) GTEST_SKIP() << "threads share no device";
  comm::run_local(5, [&](comm::Communicator& world) {
    WithSlowLink slow(world.split(0, world.rank()));
    hardware::Profile profile;
    profile.key = one_key;
    profile.key.ranks_per_node = profile.key.threads_per_rank = 1;
    measure_slow_pairs(slow, profile);
    EXPECT_EQ(profile.hosts, std::vector(5, host_name()));
    ASSERT_FALSE(profile.slow_pairs.empty());
    const auto slowest =
        std::ranges::max_element(profile.slow_pairs, {}, &hardware::SlowPair::times);
    EXPECT_EQ(std::pair(slowest->first, slowest->second), std::pair(1, 2));
    EXPECT_GT(slowest->times, 2.0);
    const std::string mine = hardware::profile_schema().write(profile);
    for (const std::string& other : world.gather(mine)) EXPECT_EQ(other, mine);
  });
}

TEST(SlowPairs, AreAPartOfWhatIsMeasuredOnSeveralNodes) {
  if (device::on_device()) GTEST_SKIP() << "threads share no device";
  const hardware::Cluster cluster =
      hardware::NodeGroup{.nodes = 3, .memory_bytes = std::int64_t{64} << 20};
  comm::run_local(3, [&](comm::Communicator& world) {
    WithSlowLink slow(world.split(0, world.rank()));
    const ProfileKey own = key(slow, 1, 1, tiny, {});
    EXPECT_NE(own.packages.find("each two nodes"), std::string::npos);
    const hardware::Profile profile = measure(slow, own, cluster, tiny, {});
    EXPECT_EQ(profile.hosts.size(), 3u);
    const std::vector<int> pair{1, 2};
    ASSERT_NE(hardware::slowest_pair(profile, pair), nullptr);
    EXPECT_GT(hardware::slowest_pair(profile, pair)->times, 2.0);
  });
}

TEST(SlowPairs, NeedMoreThanOneLink) {
  comm::run_local(2, [&](comm::Communicator& world) {
    hardware::Profile profile;
    measure_slow_pairs(world, profile);
    EXPECT_TRUE(profile.slow_pairs.empty() && profile.hosts.empty());
  });
  // Of nodes that have unlike numbers of ranks nobody says which rank is where.
  comm::run_local(6, [&](comm::Communicator& world) {
    EXPECT_TRUE(hosts(world, world.rank() == 5 ? 1 : 2).empty());
    EXPECT_EQ(hosts(world, 2).size(), 3u);
  });
}

}  // namespace
}  // namespace brume::profiler
