#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/error.hpp"
#include "base/units.hpp"
#include "deck/machine.hpp"
#include "hardware/machine.hpp"
#include "own_folder.hpp"

namespace brume::hardware {
namespace {

namespace fs = std::filesystem;

// Four devices a node; round numbers.
Profile networked() {
  Profile profile;
  profile.origin = "a test";
  profile.key.ranks_per_node = 4;
  profile.networks = {{.span = "node", .gib_per_s = 100, .start_s = 1e-5, .hop_s = 1e-6},
                      {.span = "cluster", .gib_per_s = 40, .start_s = 2e-5, .hop_s = 1e-5}};
  return profile;
}

constexpr double gib = bytes_per_gib;

TEST(Networks, ARingHopsFromRankToRank) {
  EXPECT_NEAR(link_time(networked(), LinkKind::all_gather, 1, 4, gib), 1e-5 + 3e-6 + 0.75 / 100,
              1e-12);
  EXPECT_NEAR(link_time(networked(), LinkKind::all_reduce, 1, 4, gib), 1e-5 + 6e-6 + 1.5 / 100,
              1e-12);
  EXPECT_EQ(link_time(networked(), LinkKind::all_gather, 1, 1, gib), 0.0);
}

// Over 3 nodes of 4 ranks each: 9 hops within nodes, 2 between.
TEST(Networks, LatencyGrowsWithRanksAndNodes) {
  EXPECT_NEAR(link_time(networked(), LinkKind::all_gather, 3, 4, 12.0), 2e-5 + 9e-6 + 2e-5, 1e-9);
  EXPECT_GT(link_time(networked(), LinkKind::all_gather, 128, 4, 1e6),
            10 * link_time(networked(), LinkKind::all_gather, 2, 4, 1e6));
}

// 64 nodes: a ring has 126 hops between nodes each round, a tree 6.
TEST(Networks, AnAllReduceTakesTheCheaperOfRingAndTree) {
  EXPECT_NEAR(link_time(networked(), LinkKind::all_reduce, 64, 1, 64.0), 2e-5 + 2 * 6e-5, 1e-7);
  const double large = 64 * gib, ring_s = 2 * 63.0 / 64 * 64 / 10;
  EXPECT_NEAR(link_time(networked(), LinkKind::all_reduce, 64, 1, large), ring_s, 0.01 * ring_s);
}

// One rank of each node has a quarter of the node's rate, as the groups of the others have.
TEST(Networks, GroupsShareTheirNodesNetwork) {
  EXPECT_NEAR(link_time(networked(), LinkKind::send, 2, 1, gib), 3e-5 + 1.0 / 10, 1e-12);
  EXPECT_NEAR(link_time(networked(), LinkKind::all_gather, 2, 1, gib), 3e-5 + 0.5 / 10, 1e-12);
  EXPECT_NEAR(link_time(networked(), LinkKind::all_gather, 2, 4, gib),
              2e-5 + 6e-6 + 1e-5 + 7.0 / 8 / 40, 1e-12);
}

TEST(Networks, AMeshOfPeersHasItsRateOnlyTogether) {
  Profile profile = networked();
  profile.networks[0].peer_gib_per_s = 30;
  EXPECT_NEAR(link_time(profile, LinkKind::all_gather, 1, 2, gib), 1e-5 + 1e-6 + 0.5 / 30, 1e-12);
  EXPECT_NEAR(link_time(profile, LinkKind::all_gather, 1, 4, gib), 1e-5 + 3e-6 + 0.75 / 90, 1e-12);
}

TEST(Networks, AMissingOneIsSaid) {
  Profile profile = networked();
  profile.networks.pop_back();
  EXPECT_GT(link_time(profile, LinkKind::all_gather, 1, 4, gib), 0.0);
  try {
    link_time(profile, LinkKind::all_gather, 2, 4, gib);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.failure(), Failure::input);
    EXPECT_NE(std::string(error.what()).find("cluster.network"), std::string::npos);
  }
}

// A line was measured for 2 x 4 ranks; 64 nodes of 4 take log 256 / log 8 as many steps.
TEST(Lines, LatencyGrowsBeyondWhatWasMeasured) {
  Profile profile;
  profile.transfers = {{"collective", 2, 4, 1.0, 3e-3}};
  const double bytes = 1e-3;  // nothing to speak of
  EXPECT_NEAR(link_time(profile, LinkKind::all_gather, 2, 4, bytes), 3e-3, 1e-9);
  EXPECT_NEAR(link_time(profile, LinkKind::all_gather, 2, 2, bytes), 3e-3, 1e-9);
  EXPECT_NEAR(link_time(profile, LinkKind::all_gather, 64, 4, bytes), 8e-3, 1e-9);
}

// 1e12 FLOP/s: a product of 1024^3 at 0.5 of it, one of 2048^3 at 0.9.
Profile sized() {
  Profile profile;
  profile.flops_per_s = profile.bytes_per_s = 1e12;
  profile.efficiencies = {{.kind = "matmul", .efficiency = 0.9, .size = 2048},
                          {.kind = "matmul", .efficiency = 0.5, .size = 1024},
                          {.kind = "gelu", .efficiency = 0.8}};
  profile.launch_s = 1e-6;
  return profile;
}

double product_s(const Profile& profile, std::int64_t n, double bytes = 0.0) {
  const std::int64_t dims[] = {n, n, n};
  return operator_time(profile, "matmul", dims, false, 2.0 * double(n * n * n), bytes).seconds;
}

TEST(SizedEfficiency, GrowsWithTheProduct) {
  const double flops = 2.0 * 1024 * 1024 * 1024;
  EXPECT_NEAR(product_s(sized(), 1024), flops / 0.5e12, 1e-15);
  EXPECT_NEAR(product_s(sized(), 2048), 8 * flops / 0.9e12, 1e-15);
  EXPECT_NEAR(product_s(sized(), 4096), 64 * flops / 0.9e12, 1e-12);
  EXPECT_NEAR(product_s(sized(), 512), flops / 8 / 0.5e12, 1e-15);
  EXPECT_NEAR(product_s(sized(), 1448), 2 * 1448.0 * 1448 * 1448 / 0.7e12, 1e-6);
}

TEST(SizedEfficiency, TheLargerOfFlopsAndBytesCounts) {
  EXPECT_NEAR(product_s(sized(), 1024, 9e10), 0.1, 1e-15);
}

TEST(Launch, AKernelTakesThatMuchAtLeast) {
  EXPECT_EQ(product_s(sized(), 16), 1e-6);
  const std::int64_t dims[] = {16};
  EXPECT_EQ(operator_time(sized(), "gelu", dims, true, 1.0, 1.0).seconds, 2e-6);
}

std::vector<std::string> names(const std::string& folder) {
  std::vector<std::string> all;
  const fs::path known = deck::shipped_path(deck::Shipped::machine, "dgx-h100");
  for (const auto& entry : fs::directory_iterator(known.parent_path().parent_path() / folder))
    all.push_back(entry.path().stem());
  return all;
}

// What a small product takes beside its FLOPs stays where these are made faster.
TEST(ShippedMachines, MultiplyEightBitsFaster) {
  int with = 0;
  for (const std::string& name : names("machines")) {
    deck::GroupKeys group;
    group.machine = name;
    group.devices_per_node = deck::load_machine(name).devices_per_node;
    const Profile profile = machine_profile(group);
    if (profile.fp8_flops_per_s == 0.0) continue;
    SCOPED_TRACE(name);
    ++with;
    const double speed = profile.fp8_flops_per_s / profile.flops_per_s;
    EXPECT_NEAR(speed, 2.0, 0.01);
    const auto gain = [&](std::int64_t side) {
      const std::int64_t dims[] = {side, side, side};
      const double flops = 2.0 * double(side) * double(side) * double(side);
      const double slow_s = operator_time(profile, "matmul", dims, false, flops, 0.0).seconds;
      return slow_s / operator_time(profile, "matmul", dims, false, flops, 0.0, speed).seconds;
    };
    EXPECT_GT(gain(16384), 1.95);
    EXPECT_LT(gain(16384), speed + 0.01);
    EXPECT_LT(gain(2048), 1.75);
    EXPECT_GT(gain(2048), 1.1);
  }
  EXPECT_GE(with, 4);
}

// All that a plan may ask of a machine has a price, on one node and on many.
TEST(ShippedMachines, AreComplete) {
  EXPECT_GE(names("machines").size(), 13u);
  for (const std::string& name : names("machines")) {
    SCOPED_TRACE(name);
    const deck::MachineKeys keys = deck::load_machine(name);
    EXPECT_FALSE(keys.origin.empty());
    EXPECT_GT(keys.error, 0.0);
    deck::GroupKeys group;
    group.machine = name;
    group.devices_per_node = keys.devices_per_node;
    const Profile profile = machine_profile(group);
    EXPECT_EQ(profile.key.ranks_per_node, keys.devices_per_node);
    EXPECT_EQ(profile.error, keys.error);
    EXPECT_FALSE(profile.origins.rates.empty());
    for (const LinkKind kind : all_links) {
      EXPECT_GT(link_time(profile, kind, 1, 2, 1e6), 0.0);
      EXPECT_GT(link_time(profile, kind, 4, keys.devices_per_node, 1e6), 0.0);
    }
    EXPECT_GT(copy_time(profile, CopyKind::copy_in, 1e6), 0.0);
    const std::int64_t dims[] = {2048, 4096, 4096};
    const double flops = 2.0 * 2048 * 4096 * 4096;
    const double reached =
        flops / operator_time(profile, "matmul", dims, false, flops, 1e8).seconds;
    EXPECT_GT(reached, 0.2 * profile.flops_per_s);
    EXPECT_LT(reached, profile.flops_per_s);
  }
}

// Libraries and the driver take as much of the same card, whoever measured its times.
TEST(ShippedMachines, LeaveMemoryToTheDriver) {
  const auto usable_gib = [](const char* machine) {
    deck::GroupKeys group;
    group.machine = machine;
    group.devices_per_node = 8;
    return deck::load_machine(machine).memory_gib -
           std::ldexp(double(machine_profile(group).reserved_bytes), -30);
  };
  EXPECT_NEAR(usable_gib("cloud-a100-40"), usable_gib("dgx-a100-40"), 1e-9);
}

// Shares of the peak compare between machines, so it is that of the data sheet everywhere.
TEST(ShippedMachines, HaveTheDataSheetsPeak) {
  for (const char* name : {"l4", "l4-backup"}) {
    const Profile profile = load_profile(name);
    EXPECT_EQ(profile.flops_per_s, 121e12) << name;
    ASSERT_EQ(profile.efficiencies.size(), 1u) << name;
    double largest = 0.0, reached = 0.0;
    for (const OperatorRow& row : profile.operators) {
      if (row.kind != "matmul") continue;
      const double flops = 2.0 * double(row.dims[0]) * double(row.dims[1]) * double(row.dims[2]);
      if (flops <= largest) continue;
      largest = flops;
      reached = flops / row.forward_s;
    }
    EXPECT_NEAR(profile.efficiencies[0].efficiency, reached / profile.flops_per_s, 1e-4) << name;
  }
}

TEST(ShippedMachines, TakeAnotherNetworkByName) {
  deck::GroupKeys group;
  group.machine = "dgx-a100-80";
  group.devices_per_node = 8;
  const double own_s = link_time(machine_profile(group), LinkKind::all_gather, 4, 8, 1e9);
  group.network = "4x100g";
  EXPECT_NEAR(link_time(machine_profile(group), LinkKind::all_gather, 4, 8, 1e9) / own_s, 4.0, 0.1);
  group.network = "nvlink3";
  EXPECT_THROW(machine_profile(group), Error);  // it joins devices, not nodes
  group = {};
  group.machine = "l4-x8";
  group.network = "8x200g";
  EXPECT_THROW(machine_profile(group), Error);  // measured with its own
}

TEST(ShippedMachines, AllNetworksAreReadable) {
  const test::OwnFolder folder;
  const std::string path = folder / "machine.toml";
  for (const std::string& name : names("networks")) {
    SCOPED_TRACE(name);
    const std::string file = deck::shipped_path(deck::Shipped::network, name);
    std::string line;
    bool within = false;
    for (std::ifstream text(file); std::getline(text, line);)
      within |= line.starts_with("span") && line.find("\"node\"") != std::string::npos;
    std::ofstream(path) << "origin = \"t\"\ndevice = \"a100-80-sxm\"\nfabric = \""
                        << (within ? name : "nvlink3") << "\"\nnetwork = \""
                        << (within ? "8x200g" : name)
                        << "\"\ndevices_per_node = 8\nmemory_gib = 1\nhost_memory_gib = 1\n";
    deck::GroupKeys group;
    group.machine = path;
    group.devices_per_node = 8;
    EXPECT_GT(link_time(machine_profile(group), LinkKind::all_reduce, 2, 8, 1e6), 0.0);
  }
}

TEST(ShippedMachines, AMachineIsEitherMeasuredOrComposed) {
  const test::OwnFolder folder;
  const std::string path = folder / "machine.toml";
  std::ofstream(path) << "origin = \"t\"\ndevice = \"a100-80-sxm\"\n"
                         "devices_per_node = 8\nmemory_gib = 1\nhost_memory_gib = 1\n";
  EXPECT_THROW(deck::load_machine(path), Error);
  try {
    deck::load_machine("dgx-h10");
    FAIL();
  } catch (const Error& error) {
    const std::string said = error.what();
    EXPECT_NE(said.find("machine 'dgx-h10'"), std::string::npos) << said;
    EXPECT_NE(said.find("did you mean 'dgx-h100'?"), std::string::npos) << said;
  }
}

}  // namespace
}  // namespace brume::hardware
