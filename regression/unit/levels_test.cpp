// Networks of several levels: what leaves their units, beside counts of every link's load.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "hardware/profile.hpp"
#include "plan/axes.hpp"
#include "planning_samples.hpp"
#include "price/price.hpp"

namespace brume::price {
namespace {

using model::Axis;
using model::AxisSet;

hardware::Profile with_levels(std::vector<deck::LevelKeys> levels) {
  hardware::Profile profile = samples::round_profile(2);
  profile.levels = std::move(levels);
  return profile;
}

/// Times that a link leaving a unit has its bandwidth's traffic, while each node has its own: rings
/// of all groups at once, in rank order.
double counted_congestion(const plan::Mesh<int>& mesh, AxisSet axes, int per_node,
                          const deck::LevelKeys& level, int start) {
  std::map<int, double> of_node, of_unit;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const std::vector<int> ranks = plan::members(mesh, plan::coordinates(mesh, rank), axes);
    const auto self = std::ranges::find(ranks, rank);
    const int next = self + 1 == ranks.end() ? ranks.front() : self[1];
    const int from = start + rank / per_node, to = start + next / per_node;
    if (from != to) ++of_node[from];
    if (from / level.nodes != to / level.nodes) ++of_unit[from / level.nodes];
  }
  double node = 0.0, unit = 0.0;
  for (const auto& [at, load] : of_node) node = std::max(node, load);
  for (const auto& [at, load] : of_unit) unit = std::max(unit, load);
  return node > 0.0 ? std::max(1.0, unit * level.oversubscription / level.nodes / node) : 1.0;
}

// Stages begin anywhere. The formula is exact where extents are whole units or parts of one.
TEST(Levels, CongestionIsThatOfTheBusiestLink) {
  std::mt19937 random(3);
  int congested = 0, unaligned = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    const int tp = samples::pick<int>(random, {1, 2, 4, 8}),
              shard = samples::pick<int>(random, {1, 2, 3, 8}),
              replica = samples::pick<int>(random, {1, 2, 3, 4}),
              per_node = samples::pick<int>(random, {1, 2, 4}),
              start = samples::pick<int>(random, {0, 0, 1, 2, 3, 4});
    const deck::LevelKeys level{.nodes = samples::pick<int>(random, {2, 3, 4, 6}),
                                .oversubscription = 8.0};
    const plan::Mesh<int> mesh = plan::weights_mesh(tp, 1, shard * replica, replica);
    const int nodes = mesh.size() / per_node;
    const auto nests = [&](int ranks) { return per_node % ranks == 0 || ranks % per_node == 0; };
    if (!nests(tp) || !nests(tp * shard) || !nests(mesh.size()) || per_node > mesh.size()) continue;
    const AxisSet axes =
        samples::pick<AxisSet>(random, {Axis::tp, Axis::shard, Axis::replica, model::state_axes});
    const int extent = std::max(1, mesh.extent(axes) / per_node);
    if (mesh.size(axes) == 1 || nodes % extent != 0) continue;
    SCOPED_TRACE(testing::Message() << tp << ' ' << shard << ' ' << replica << ' ' << per_node
                                    << ' ' << level.nodes << ' ' << start << ' ' << extent);
    const hardware::Profile profile = with_levels({level});
    const hardware::NodeSpan span{.nodes = mesh.spread(axes, per_node).nodes,
                                  .extent = extent,
                                  .first = start,
                                  .stage_nodes = nodes};
    const double found = hardware::congestion(profile, span).times;
    const double counted = counted_congestion(mesh, axes, per_node, level, start);
    const bool whole = extent % level.nodes == 0 && start % level.nodes == 0;
    const bool inside = level.nodes % extent == 0 && start % extent == 0;
    if (whole || inside) {
      EXPECT_DOUBLE_EQ(found, counted);
    } else {
      ++unaligned;
      EXPECT_GE(found, counted);
      EXPECT_LE(found, 2.0 * counted);
    }
    congested += counted > 1.0;
    const int first = hardware::first_in_unit(profile, start, nodes);
    EXPECT_DOUBLE_EQ(hardware::congestion(profile, {span.nodes, span.extent, first, nodes}).times,
                     found);
  }
  EXPECT_GT(congested, 100);
  EXPECT_GT(unaligned, 100);
}

/// The same of an all-to-all, in which each rank sends as much to each other one.
double counted_all_to_all(int extent, int start, const deck::LevelKeys& level) {
  std::map<int, double> of_unit;
  for (int from = start; from < start + extent; ++from)
    for (int to = start; to < start + extent; ++to)
      if (from / level.nodes != to / level.nodes) of_unit[from / level.nodes] += 1.0 / extent;
  double most = 0.0;
  for (const auto& [unit, load] : of_unit) most = std::max(most, load);
  return std::max(1.0, level.oversubscription * most / level.nodes);
}

TEST(Levels, AnAllToAllLeavesUnitsByTheShareOfOthers) {
  for (const int unit : {2, 5, 16})
    for (int extent = 2; extent < 40; ++extent)
      for (int start = 0; start < unit; ++start) {
        const deck::LevelKeys level{.nodes = unit, .oversubscription = 10.0};
        const hardware::NodeSpan span{
            .nodes = extent, .extent = extent, .first = start, .stage_nodes = extent};
        EXPECT_NEAR(hardware::congestion(with_levels({level}), span, true).times,
                    counted_all_to_all(extent, start, level), 1e-9)
            << unit << ' ' << extent << ' ' << start;
      }
}

// Three levels: two nodes a leaf, four a pod, eight in all; stages of one node, then of two.
TEST(Levels, MessagesTakeTheLevelsBetweenTheirNodes) {
  const hardware::Profile profile =
      with_levels({{.nodes = 2, .oversubscription = 2.0, .hop_s = 1e-6},
                   {.nodes = 4, .oversubscription = 16.0, .hop_s = 1e-5}});
  const auto congestion = [&](int from, int to, int senders) {
    return hardware::congestion(profile, from, to, senders);
  };
  EXPECT_EQ(congestion(0, 1, 1), hardware::Congestion());
  EXPECT_EQ(congestion(1, 2, 1),
            (hardware::Congestion{1.0, 1e-6}));  // one of two nodes: half of their rate
  EXPECT_EQ(congestion(1, 2, 2), (hardware::Congestion{2.0, 1e-6}));
  EXPECT_EQ(congestion(3, 4, 1), (hardware::Congestion{4.0, 1e-6 + 1e-5}));
  EXPECT_EQ(congestion(3, 4, 64), (hardware::Congestion{16.0, 1e-6 + 1e-5}));
  // The plan's ends: eight stages of one node each.
  plan::Plan plan;
  for (int i = 0; i < 8; ++i)
    plan.stages.push_back({.layers = 1, .nodes = 1, .devices_per_node = 2, .tp = 2});
  EXPECT_EQ(ends(plan, profile, 2, 4).congestion, congestion(1, 2, 1));
  EXPECT_EQ(ends(plan, profile, 6, 8).congestion, congestion(3, 4, 1));
  const hardware::Profile flat = with_levels({});
  const double bytes = 1e6;
  EXPECT_DOUBLE_EQ(send_s(profile, ends(plan, profile, 6, 8), bytes),
                   send_s(flat, true, 4.0 * bytes) + 1e-6 + 1e-5);
}

TEST(Levels, CollectivesOfStagesTakeThem) {
  const hardware::Profile flat = with_levels({});
  const hardware::Profile profile =
      with_levels({{.nodes = 2, .oversubscription = 4.0, .hop_s = 1e-5}});
  const plan::Stage stage{.nodes = 4, .devices_per_node = 2, .dp = 4, .tp = 2};
  const Ranks data = ranks(stage, Axis::shard), tensor = ranks(stage, Axis::tp);
  EXPECT_EQ(data, (Ranks{.nodes = 4, .per_node = 1, .extent = 4, .stage_nodes = 4}));
  EXPECT_EQ(tensor, (Ranks{.nodes = 1, .per_node = 2, .stage_nodes = 4}));
  const double bytes = 1e6;
  const auto both = [&](Collective collective, Ranks ranks) {
    return std::pair(collective_s(profile, collective, ranks, bytes),
                     collective_s(flat, collective, ranks, 2.0 * bytes));
  };
  // Two nodes of each of two units: a ring leaves a unit once, for which a quarter of the rate of
  // two nodes is there.
  const auto [reduced_s, flat_s] = both(Collective::all_reduce, data);
  EXPECT_DOUBLE_EQ(reduced_s, flat_s + 2.0 * 1e-5);
  const auto [gathered_s, flat_gathered_s] = both(Collective::all_gather, data);
  EXPECT_DOUBLE_EQ(gathered_s, flat_gathered_s + 1e-5);
  // In an all-to-all half of what each rank sends leaves its unit.
  const auto [sent_s, flat_sent_s] = both(Collective::all_to_all, data);
  EXPECT_DOUBLE_EQ(sent_s, flat_sent_s + 1e-5);
  EXPECT_EQ(collective_s(profile, Collective::all_reduce, tensor, bytes),
            collective_s(flat, Collective::all_reduce, tensor, bytes));
}

// An all-gather brings each row to a node once, an all-to-all other rows to each rank there.
TEST(Levels, MessagesComeToEachRankOfANode) {
  const hardware::Profile profile = samples::round_profile(4);
  const double bytes = 1e6;
  const auto gathered_s = [&](int nodes, double all) {
    return collective_s(profile, Collective::all_gather, {.nodes = nodes, .per_node = 4}, all);
  };
  const auto sent_s = [&](int nodes) {
    return collective_s(profile, Collective::all_to_all, {.nodes = nodes, .per_node = 4}, bytes);
  };
  EXPECT_DOUBLE_EQ(sent_s(1), gathered_s(1, bytes));
  // Half the bytes of each of 8 ranks stay on its node, and the other halves of four leave it.
  EXPECT_DOUBLE_EQ(sent_s(2),
                   gathered_s(1, bytes / 2.0) + gathered_s(2, 4.0 * bytes / 2.0 * 8.0 / 7.0));
}

}  // namespace
}  // namespace brume::price
