#include "price/price.hpp"

#include <gtest/gtest.h>

#include "planning_samples.hpp"

namespace brume::price {
namespace {

const hardware::Profile profile = samples::round_profile(2);  // 1e10 B/s of memory, 1 us a task

TEST(Price, PassesOverMemoryAreCounted) {
  EXPECT_DOUBLE_EQ(copy_s(profile, 1e10), 2.0);
  EXPECT_DOUBLE_EQ(accumulate_s(profile, 1e10), 3.0);
  EXPECT_DOUBLE_EQ(clear_s(profile, 1e10), 3.0);
  EXPECT_DOUBLE_EQ(norm_s(profile, 1e10), 1.0);
  EXPECT_EQ(copy_s(hardware::Profile{}, 1e10), 0.0);
}

TEST(Price, EachTaskTakesItsOverhead) {
  EXPECT_DOUBLE_EQ(task_s(profile, 1.0), 1.0 + 1e-6);
  EXPECT_DOUBLE_EQ(task_s(profile, 1.0, 2), 1.0 + 2e-6);
}

TEST(Price, RanksOfAPlanFillNodes) {
  EXPECT_EQ(world_ranks(profile, 1), (Ranks{1, 1}));
  EXPECT_EQ(world_ranks(profile, 2), (Ranks{1, 2}));
  EXPECT_EQ(world_ranks(profile, 5), (Ranks{3, 2}));
  EXPECT_EQ(dp_ranks({.nodes = 2, .devices_per_node = 8, .dp = 4, .tp = 4}), (Ranks{2, 2}));
  EXPECT_EQ(collective_s(profile, Collective::all_reduce, {1, 1}, 1e6), 0.0);
}

/// Stages of one rank each, on these groups.
plan::Plan on_groups(const std::vector<std::string>& groups) {
  plan::Plan plan;
  for (const std::string& group : groups) plan.stages.push_back({.layers = 1, .group = group});
  return plan;
}

// Ranks 0 and 1 share a node, rank 2 is on the next one.
TEST(Price, AMessageIsPricedByWhereItsEndsAre) {
  const plan::Plan plan = on_groups({"", "", ""});
  EXPECT_EQ(ends(plan, profile, 0, 1), (Ends{0, 0, false}));
  EXPECT_EQ(ends(plan, profile, 2, 1), (Ends{0, 0, true}));
  EXPECT_EQ(send_s(hardware::Machine(profile), Ends{0, 0, true}, 1e6),
            hardware::link_time(profile, "send", 2, 1, 1e6));
}

TEST(Price, AMessageBetweenGroupsTakesTheirLink) {
  const hardware::Machine machine(
      hardware::Cluster(std::vector<hardware::NodeGroup>{{.name = "a"}, {.name = "b"}}),
      {profile, profile}, {{.between = {"a", "b"}, .gib_per_s = 1.0, .latency_s = 0.5}});
  const Ends apart = ends(on_groups({"a", "b"}), machine, 1, 0);
  EXPECT_EQ(apart, (Ends{1, 0, false}));
  EXPECT_DOUBLE_EQ(send_s(machine, apart, 1 << 30), 1.5);
}

}  // namespace
}  // namespace brume::price
