#include "hardware/profile.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.hpp"
#include "deck/machine.hpp"
#include "hardware/machine.hpp"
#include "own_folder.hpp"

namespace brume::hardware {
namespace {

namespace fs = std::filesystem;

Profile sample() {
  Profile profile;
  profile.key = {"some CPU", "dnnl 2.6", 4, 2, "by core", "C 64 T 32"};
  profile.origin = "a test";
  profile.flops_per_s = 1e11 / 3.0;
  profile.bytes_per_s = 1e10;
  profile.host_updates_per_s = 1e9 / 7.0;
  profile.task_overhead_s = 5.1e-6;
  profile.operators = {{"matmul", {100, 64, 32}, 1e-3, 2e-3},
                       {"matmul", {300, 64, 32}, 2e-3, 6e-3},
                       {"attention", {2, 64, 4, 16}, 4e-3, 1e-2},
                       {"embedding", {64, 32, 500}, 1e-4, 2e-4}};
  profile.links = {{LinkKind::all_reduce, 1, 2, 1000, 1e-4},
                   {LinkKind::all_reduce, 1, 2, 3000, 2e-4},
                   {LinkKind::all_reduce, 1, 2, 5000, 4e-4},
                   {LinkKind::send, 1, 2, 1000, 5e-5},
                   {LinkKind::all_reduce, 2, 1, 1000, 9e-4}};
  profile.waits = {{2, 0.03}, {8, 0.05}};
  profile.copies = {{CopyKind::copy_in, 1000, 1e-5}, {CopyKind::copy_in, 2000, 1.5e-5}};
  profile.interference[1] = 0.1 + 0.2;
  return profile;
}

TEST(Profile, MediansLeaveOutWhatWasSlowOnce) {
  std::vector<Profile> rounds(3, sample());
  rounds[0].operators[1].forward_s *= 10.0;
  rounds[1].operators[1].backward_s *= 10.0;
  rounds[1].flops_per_s /= 10.0;
  rounds[2].host_updates_per_s /= 10.0;
  rounds[2].links[4].time_s *= 10.0;
  rounds[1].waits[1].share *= 10.0;
  rounds[2].copies[0].time_s *= 10.0;
  rounds[0].interference[1] = 20.0;
  EXPECT_EQ(profile_schema().write(medians(rounds)), profile_schema().write(sample()));
  for (std::size_t round : {1u, 2u}) rounds[round].operators.erase(rounds[round].operators.begin());
  rounds[0].operators[0].forward_s = 7.0;  // no other round has it
  EXPECT_EQ(medians(rounds).operators[0].forward_s, 7.0);
  EXPECT_EQ(medians(rounds).operators[2].forward_s, 4e-3);
}

TEST(WaitShare, IsThatOfTheNearestGroup) {
  const Profile profile = sample();
  EXPECT_EQ(wait_share(profile, 1), 0.0);
  EXPECT_EQ(wait_share(profile, 2), 0.03);
  EXPECT_EQ(wait_share(profile, 3), 0.03);
  EXPECT_EQ(wait_share(profile, 6), 0.05);
  EXPECT_EQ(wait_share(profile, 64), 0.05);
  EXPECT_EQ(wait_share({}, 2), 0.0);
}

Time matmul(std::vector<std::int64_t> dims, bool backward = false) {
  return operator_time(sample(), "matmul", dims, backward, 1e6, 1e5);
}

TEST(OperatorTime, MeasuredRowIsTakenAsItIs) {
  EXPECT_EQ(matmul({100, 64, 32}).seconds, 1e-3);
  EXPECT_EQ(matmul({100, 64, 32}, true).seconds, 2e-3);
  EXPECT_EQ(matmul({100, 64, 32}).source, Source::measured);
}

TEST(OperatorTime, InterpolatesInTheOneDimensionThatDiffers) {
  EXPECT_NEAR(matmul({200, 64, 32}).seconds, 1.5e-3, 1e-15);
  EXPECT_NEAR(matmul({150, 64, 32}, true).seconds, 3e-3, 1e-15);
  EXPECT_EQ(matmul({200, 64, 32}).source, Source::interpolated);
}

// Twice the work of the row {300, 64, 32}, at its efficiency.
TEST(OperatorTime, OutsideTheTableTheNearestEfficiencyHolds) {
  EXPECT_NEAR(matmul({600, 64, 32}).seconds, 4e-3, 1e-15);
  EXPECT_EQ(matmul({600, 64, 32}).source, Source::roofline);
}

// A hundredth of the rows of {100, 64, 32}: as long as their bytes, at most as long as all rows.
TEST(OperatorTime, FewRowsReadAllWeights) {
  const std::vector<std::int64_t> dims{1, 64, 32};
  const auto seconds = [&](double bytes) {
    return operator_time(sample(), "matmul", dims, false, 1e4, bytes).seconds;
  };
  EXPECT_NEAR(seconds(1e3), 1e-5, 1e-15);
  EXPECT_NEAR(seconds(5e6), 5e-4, 1e-15);
  EXPECT_NEAR(seconds(1e9), 1e-3, 1e-15);
}

TEST(OperatorTime, BytesReachTheShareOfPassesOverMemory) {
  Profile profile;
  profile.flops_per_s = 1e12;
  profile.bytes_per_s = 1e10;
  profile.efficiencies = {{"matmul", 0.1, 100.0}, {"matmul", 0.5, 10000.0}};
  const std::vector<std::int64_t> dims{1, 4096, 4096};
  const auto seconds = [&] {
    return operator_time(profile, "matmul", dims, false, 3e7, 3e7).seconds;
  };
  EXPECT_NEAR(seconds(), 3e-3 / 0.5, 1e-12);
  profile.efficiencies.push_back({"pointwise", 0.75});
  EXPECT_NEAR(seconds(), 3e-3 / 0.75, 1e-12);
}

TEST(OperatorTime, OfEqualSizesTheRowOfTheGroupHolds) {
  Profile profile = sample();
  profile.operators.push_back({"matmul", {100, 64, 32}, 5e-3, 7e-3, 4});
  const std::int64_t dims[] = {100, 64, 32};
  EXPECT_EQ(measured_operator(profile, "matmul", dims)->forward_s, 1e-3);
  EXPECT_EQ(measured_operator(profile, "matmul", dims, 4)->forward_s, 5e-3);
  EXPECT_EQ(measured_operator(profile, "matmul", dims, 8)->forward_s, 1e-3);
  EXPECT_EQ(measured_operator(profile, "gelu", dims), nullptr);
}

// Rows of no tokens, which Mist has, tell nothing about others.
TEST(OperatorTime, EmptyRowsAreNotScaled) {
  Profile profile = sample();
  profile.operators = {{"matmul", {0, 64, 32}, 1e-6, 1e-6}};
  profile.efficiencies = {{"matmul", 0.5}};
  const std::int64_t dims[] = {100, 64, 32};
  const Time time = operator_time(profile, "matmul", dims, false, 1e6, 0.0);
  EXPECT_NEAR(time.seconds, 1e6 / (1e11 / 3.0) / 0.5, 1e-12);
  EXPECT_EQ(time.source, Source::roofline);
}

// Attention work grows with T squared, an embedding's not with its vocabulary.
TEST(OperatorTime, WorkFollowsTheKind) {
  const std::vector<std::int64_t> twice_seq{2, 128, 4, 16}, large_table{64, 32, 5000};
  EXPECT_NEAR(operator_time(sample(), "attention", twice_seq, false, 0, 0).seconds, 1.6e-2, 1e-15);
  EXPECT_NEAR(operator_time(sample(), "embedding", large_table, true, 0, 0).seconds, 2e-4, 1e-15);
}

TEST(OperatorTime, AKindWithoutRowsTakesTheRoofline) {
  const std::vector<std::int64_t> dims{64, 64};
  const Time time = operator_time(sample(), "gelu", dims, false, 1e6, 2e5);
  EXPECT_NEAR(time.seconds, 1e6 * 3.0 / 1e11 + 2e5 / 1e10, 1e-15);
  EXPECT_THROW(operator_time(Profile{}, "gelu", dims, false, 1e6, 2e5), Error);
}

TEST(LinkTime, LinearBetweenConstantBelowSlopeAbove) {
  EXPECT_NEAR(link_time(sample(), LinkKind::all_reduce, 1, 2, 10), 1e-4, 1e-15);
  EXPECT_NEAR(link_time(sample(), LinkKind::all_reduce, 1, 2, 1000), 1e-4, 1e-15);
  EXPECT_NEAR(link_time(sample(), LinkKind::all_reduce, 1, 2, 2000), 1.5e-4, 1e-15);
  EXPECT_NEAR(link_time(sample(), LinkKind::all_reduce, 1, 2, 3000), 2e-4, 1e-15);
  EXPECT_NEAR(link_time(sample(), LinkKind::all_reduce, 1, 2, 9000), 8e-4, 1e-15);
}

TEST(LinkTime, AGroupOfOneIsFree) {
  EXPECT_EQ(link_time(Profile{}, LinkKind::all_reduce, 1, 1, 1e9), 0.0);
}

// A ring of 4 carries 3/4 of the buffer per link, one of 2 carries 1/2.
TEST(LinkTime, OtherGroupsFollowTheRing) {
  EXPECT_NEAR(link_time(sample(), LinkKind::all_reduce, 1, 4, 1000), 1e-4 * 0.75 / 0.5, 1e-15);
  EXPECT_NEAR(link_time(sample(), LinkKind::all_reduce, 2, 2, 1000), 9e-4 * 0.75 / 0.5, 1e-15);
}

/// Only links of one kind: 1 us + 1 ns a byte in groups of 4.
Profile only(LinkKind kind) {
  Profile profile;
  profile.links = {{kind, 1, 4, 1000, 2e-6}, {kind, 1, 4, 9000, 10e-6}};
  return profile;
}

// In a ring of 4, an all-gather of 4000 bytes carries 3 x 1000 bytes over each link.
TEST(LinkTime, CollectivesStandInForEachOther) {
  EXPECT_NEAR(link_time(only(LinkKind::all_gather), LinkKind::all_gather, 1, 4, 4000), 5e-6, 1e-15);
  EXPECT_NEAR(link_time(only(LinkKind::all_gather), LinkKind::all_reduce, 1, 4, 4000), 10e-6,
              1e-15);
  EXPECT_NEAR(link_time(only(LinkKind::all_gather), LinkKind::reduce_scatter, 1, 4, 4000), 5e-6,
              1e-15);
  EXPECT_NEAR(link_time(only(LinkKind::all_reduce), LinkKind::all_gather, 1, 4, 4000), 2.5e-6,
              1e-15);
  EXPECT_NEAR(link_time(only(LinkKind::all_reduce), LinkKind::reduce_scatter, 1, 4, 4000), 2.5e-6,
              1e-15);
}

TEST(LinkTime, AMessageStandsInForARing) {
  EXPECT_NEAR(link_time(only(LinkKind::send), LinkKind::all_gather, 1, 4, 8000), 3 * 3e-6, 1e-15);
  EXPECT_NEAR(link_time(only(LinkKind::send), LinkKind::all_reduce, 1, 4, 8000), 6 * 3e-6, 1e-15);
}

// Two ranks gather 2 x 1000 bytes by a message of 1000 each; measured were 4 ranks, whose links
// carry 3/4 of the buffer instead of 1/2.
TEST(LinkTime, ARingStandsInForAMessage) {
  const double gather_s = 3e-6 * 0.5 / 0.75;
  EXPECT_NEAR(link_time(only(LinkKind::all_gather), LinkKind::send, 1, 2, 1000), gather_s, 1e-15);
  EXPECT_NEAR(link_time(only(LinkKind::all_reduce), LinkKind::send, 1, 2, 1000), gather_s / 2,
              1e-15);
}

TEST(LinkTime, StandInsAreSaid) {
  EXPECT_TRUE(stand_ins(Profile{}).empty());
  EXPECT_TRUE(stand_ins(load_profile("l4")).empty());
  const std::vector<std::string> expected{
      "no 'reduce_scatter' was measured: 1 x all_gather stands in for it",
      "no 'all_reduce' was measured: 2 x all_gather stands in for it",
      "no 'send' was measured: all_gather that carries as much stands in for it"};
  EXPECT_EQ(stand_ins(only(LinkKind::all_gather)), expected);
  EXPECT_EQ(stand_ins(only(LinkKind::send)).front(),
            "no 'all_gather' was measured: a ring of sends stands in for it");
}

TEST(LinkTime, WithoutAnyLinkAGroupIsAnError) {
  Profile profile = sample();
  profile.links.clear();
  try {
    link_time(profile, LinkKind::all_gather, 1, 2, 1000);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.failure(), Failure::input);
    const std::string said = error.what();
    EXPECT_NE(said.find("profile 'a test' has no measured links"), std::string::npos) << said;
    EXPECT_NE(said.find("brume profile DECK -o FILE"), std::string::npos) << said;
  }
  profile.file = "mine.toml";
  EXPECT_EQ(load_profile("l4").file, "l4");
  try {
    copy_time(profile, CopyKind::copy_out, 1000);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "profile 'mine.toml' has no measured 'copy_out'");
  }
  EXPECT_THROW(copy_time(sample(), CopyKind::copy_out, 1000), Error);
}

TEST(CopyTime, ReadsItsOwnCurve) {
  EXPECT_NEAR(copy_time(sample(), CopyKind::copy_in, 4000), 2.5e-5, 1e-15);
  EXPECT_EQ(copy_time(sample(), CopyKind::copy_out, 0), 0.0);
}

TEST(ProfileFile, ComesBackExactly) {
  const test::OwnFolder folder;
  const std::string path = folder / "profile.toml";
  save_profile(sample(), path);
  const Profile back = load_profile(path);
  EXPECT_EQ(profile_schema().write(back), profile_schema().write(sample()));
  EXPECT_EQ(back.flops_per_s, 1e11 / 3.0);
  EXPECT_EQ(back.interference[1], 0.1 + 0.2);
  EXPECT_EQ(back.operators[2].dims, sample().operators[2].dims);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
}

TEST(ProfileFile, SlowPairsOfNodesComeBackAndStandOnlyWhereThereAreAny) {
  Profile profile = sample();
  for (const char* key : {"slow_pairs", "hosts"})
    EXPECT_EQ(profile_schema().write(profile).find(key), std::string::npos) << key;
  profile.slow_pairs = {{0, 2, 1.0 / 0.3}, {3, 1, 2.0}};
  profile.hosts = {"a", "b", "c", "d"};
  const std::string text = profile_schema().write(profile);
  const Profile back = profile_schema().read(deck::Document::parse(text, "text"));
  EXPECT_EQ(profile_schema().write(back), text);
  EXPECT_EQ(back.hosts, profile.hosts);
  const std::vector<int> all{0, 1, 2, 3}, other{1, 3}, none{0, 1};
  EXPECT_EQ(slowest_pair(back, all)->times, 1.0 / 0.3);
  EXPECT_EQ(slowest_pair(back, other)->first, 3);
  EXPECT_EQ(slowest_pair(back, none), nullptr);
}

TEST(ProfileFile, SlowPairsThatCannotBeAreRefused) {
  const auto read = [](const std::string& row) {
    profile_schema().read(deck::Document::parse("[[slow_pairs]]\n" + row, "text"));
  };
  EXPECT_NO_THROW(read("first = 0\nsecond = 2000000000\ntimes = 1e6"));
  for (const char* row :
       {"first = 0\nsecond = 1", "first = -1\nsecond = 1\ntimes = 2.0",
        "first = 0\nsecond = 1\ntimes = 0.5", "first = 0\nsecond = 1\ntimes = inf",
        "first = 0\nsecond = 1\ntimes = nan", "first = 0\nsecond = 3000000000\ntimes = 2.0",
        "first = 0\nsecond = 1\ntimes = 2.0\nthird = 2"})
    EXPECT_THROW(read(row), Error) << row;
}

TEST(ProfileFile, AShortInterferenceTableIsRefused) {
  const test::OwnFolder folder;
  const fs::path path = folder / "short.toml";
  std::ofstream(path) << "interference = [0.0, 0.0]\n";
  EXPECT_THROW(load_profile(path), Error);
}

TEST(ShippedProfiles, LoadByTheirNames) {
  for (const char* name : {"l4", "l4-backup", "synthetic", "a100-40", "h200"}) {
    const Profile profile = load_profile(name);
    EXPECT_FALSE(profile.origin.empty()) << name;
    EXPECT_GT(profile.flops_per_s, 1e12) << name;
  }
  EXPECT_EQ(load_profile("l4").operators.size(), 98u);
}

TEST(ShippedProfiles, OthersAreRefusedWithTheNamesThereAre) {
  try {
    deck::shipped_path(deck::Shipped::profile, "l5");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.failure(), Failure::input);
    const std::string said = error.what();
    EXPECT_NE(said.find("a100-40, h200, l4, l4-backup, synthetic"), std::string::npos) << said;
    EXPECT_NE(said.find("did you mean 'l4'?"), std::string::npos) << said;
  }
  EXPECT_THROW(deck::shipped_path(deck::Shipped::profile, "nowhere/l4.toml"), Error);
}

TEST(ShippedProfiles, AFolderOfOnesOwnComesFirst) {
  const test::OwnFolder folder;
  save_profile(sample(), folder / "l4.toml");
  ::setenv("BRUME_PROFILES", folder.path().c_str(), 1);
  EXPECT_EQ(load_profile("l4").origin, "a test");
  ::unsetenv("BRUME_PROFILES");
}

TEST(ProfileFile, AFolderThatIsNotThereIsAStorageError) {
  const test::OwnFolder folder;
  try {
    save_profile(sample(), folder / "missing/profile.toml");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.failure(), Failure::storage);
  }
}

TEST(Cluster, TurnsGibIntoBytes) {
  deck::ClusterKeys keys;
  keys.nodes = 2, keys.devices_per_node = 4;
  keys.memory_gib = 1.5, keys.host_memory_gib = 3;
  const Cluster c = cluster(keys);
  EXPECT_EQ(c.devices(), 8);
  EXPECT_EQ(c.groups[0].memory_bytes, 1610612736);
  EXPECT_EQ(c.groups[0].host_memory_bytes, 3221225472);
}

deck::ClusterKeys two_groups() {
  deck::ClusterKeys keys;
  for (const char* name : {"fast", "slow"}) {
    keys.groups.emplace_back();
    keys.groups.back().name = name;
    keys.groups.back().memory_gib = keys.groups.back().host_memory_gib = 1;
  }
  return keys;
}

Profile with_messages_of(double bytes_per_s) {
  Profile profile;
  for (std::int64_t bytes : {1000, 2000})
    profile.links.push_back({LinkKind::send, 2, 1, bytes, double(bytes) / bytes_per_s});
  return profile;
}

// 2^30 bytes at 2 GiB/s after 0.25 s; without a link of its own the slower of both profiles.
TEST(Machine, MessagesBetweenGroupsTakeTheLinkOrTheSlowerProfile) {
  deck::ClusterKeys keys = two_groups();
  const std::vector profiles{with_messages_of(1e9), with_messages_of(1e6)};
  const Machine slower(cluster(keys), profiles, keys.links);
  EXPECT_NEAR(slower.crossing_s(0, 1, 4000), 4e-3, 1e-15);
  EXPECT_EQ(slower.crossing_s(1, 0, 4000), slower.crossing_s(0, 1, 4000));
  keys.links = {{.between = {"slow", "fast"}, .gib_per_s = 2, .latency_s = 0.25}};
  const Machine linked(cluster(keys), profiles, keys.links);
  EXPECT_NEAR(linked.crossing_s(0, 1, 1 << 30), 0.75, 1e-12);
  EXPECT_EQ(linked.crossing_s(1, 0, 0.0), 0.0);
}

TEST(Machine, PlansGetWhatIsNotReserved) {
  Profile profile = sample();
  EXPECT_EQ(profile_schema().write(profile).find("reserved_bytes"), std::string::npos);
  const Cluster cluster = NodeGroup{.memory_bytes = 1000, .host_memory_bytes = 500};
  EXPECT_EQ(usable(cluster, profile).groups[0].memory_bytes, 1000);
  EXPECT_FALSE(usable(cluster, profile).groups[0].on_device);

  profile.reserved_bytes = 300;
  const std::string text = profile_schema().write(profile);
  profile = profile_schema().read(deck::Document::parse(text, "text"));
  EXPECT_EQ(usable(cluster, profile).groups[0].memory_bytes, 700);
  EXPECT_TRUE(usable(cluster, profile).groups[0].on_device);
  EXPECT_EQ(usable(cluster, profile).groups[0].host_memory_bytes, 500);

  profile.reserved_bytes = 1000;
  EXPECT_THROW(usable(cluster, profile), Error);
}

TEST(Machine, ReadsBackFromItsText) {
  deck::ClusterKeys keys = two_groups();
  const Machine machine(cluster(keys), {with_messages_of(1e9), with_messages_of(1e6)}, {});
  const Machine back = parse_machine(text(machine), "text", keys);
  EXPECT_EQ(text(back), text(machine));
  EXPECT_EQ(back.profile("slow").links[1].time_s, machine.profile(1).links[1].time_s);
  EXPECT_THROW(back.index("other"), Error);
  const Machine one = with_messages_of(1e9);
  EXPECT_EQ(text(one), profile_schema().write(one.profile(0)));
}

}  // namespace
}  // namespace brume::hardware
