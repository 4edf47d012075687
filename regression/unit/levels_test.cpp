// Networks of several levels: what leaves their units, beside counts of every link's load.
#include <gtest/gtest.h>

#include <algorithm>
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
                          const deck::LevelKeys& level) {
  const int nodes = mesh.size() / per_node, units = nodes / level.nodes;
  std::vector<double> of_node(std::size_t(nodes), 0.0), of_unit(std::size_t(units), 0.0);
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const std::vector<int> ranks = plan::members(mesh, plan::coordinates(mesh, rank), axes);
    const auto self = std::ranges::find(ranks, rank);
    const int next = self + 1 == ranks.end() ? ranks.front() : self[1];
    const int from = rank / per_node, to = next / per_node;
    if (from != to) ++of_node[std::size_t(from)];
    if (from / level.nodes != to / level.nodes) ++of_unit[std::size_t(from / level.nodes)];
  }
  const double node = std::ranges::max(of_node), unit = std::ranges::max(of_unit);
  return node > 0.0 ? std::max(1.0, unit * level.oversubscription / level.nodes / node) : 1.0;
}

TEST(Levels, CongestionIsThatOfTheBusiestLink) {
  int congested = 0;
  for (const int tp : {1, 2, 4, 8})
    for (const int shard : {1, 2, 3, 8})
      for (const int replica : {1, 2, 3, 4})
        for (const int per_node : {2, 4})
          for (const int level_nodes : {2, 4, 6}) {
            const plan::Mesh<int> mesh = plan::weights_mesh(tp, 1, shard * replica, replica);
            const int nodes = mesh.size() / per_node;
            if (mesh.size() % per_node != 0 || tp % per_node != 0 || nodes % level_nodes != 0)
              continue;
            const deck::LevelKeys level{.nodes = level_nodes, .oversubscription = 8.0};
            for (const AxisSet axes : {AxisSet(Axis::tp), AxisSet(Axis::shard),
                                       AxisSet(Axis::replica), model::state_axes}) {
              if (mesh.size(axes) == 1) continue;
              SCOPED_TRACE(testing::Message() << tp << ' ' << shard << ' ' << replica << ' '
                                              << per_node << ' ' << level_nodes);
              const int extent = mesh.extent(axes) / per_node;
              const double found =
                  hardware::climb(with_levels({level}),
                                  {mesh.spread(axes, per_node).nodes, std::max(1, extent)})
                      .congestion;
              const double counted = counted_congestion(mesh, axes, per_node, level);
              const bool aligned =
                  extent <= 1 || extent % level_nodes == 0 || level_nodes % extent == 0;
              if (aligned) {
                EXPECT_DOUBLE_EQ(found, counted);
              }
              EXPECT_GE(found, counted);
              EXPECT_LE(found, 2.0 * counted);
              congested += counted > 1.0;
            }
          }
  EXPECT_GT(congested, 20);
}

// Three levels: two nodes a leaf, four a pod, eight in all; stages of one node, then of two.
TEST(Levels, MessagesTakeTheLevelsBetweenTheirNodes) {
  const hardware::Profile profile =
      with_levels({{.nodes = 2, .oversubscription = 2.0, .hop_s = 1e-6},
                   {.nodes = 4, .oversubscription = 16.0, .hop_s = 1e-5}});
  const auto climb = [&](int from, int to, int senders) {
    return hardware::climb(profile, from, to, senders);
  };
  EXPECT_EQ(climb(0, 1, 1), hardware::Climb());
  EXPECT_EQ(climb(1, 2, 1), (hardware::Climb{1.0, 1e-6}));  // one of two nodes: half of their rate
  EXPECT_EQ(climb(1, 2, 2), (hardware::Climb{2.0, 1e-6}));
  EXPECT_EQ(climb(3, 4, 1), (hardware::Climb{4.0, 1e-6 + 1e-5}));
  EXPECT_EQ(climb(3, 4, 64), (hardware::Climb{16.0, 1e-6 + 1e-5}));
  // The plan's ends: eight stages of one node each.
  plan::Plan plan;
  for (int i = 0; i < 8; ++i)
    plan.stages.push_back({.layers = 1, .nodes = 1, .devices_per_node = 2, .tp = 2});
  EXPECT_EQ(ends(plan, profile, 2, 4).climb, climb(1, 2, 1));
  EXPECT_EQ(ends(plan, profile, 6, 8).climb, climb(3, 4, 1));
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
  EXPECT_EQ(data, (Ranks{4, 1, 1.0, 4}));
  EXPECT_EQ(tensor, (Ranks{1, 2}));
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

}  // namespace
}  // namespace brume::price
