#include "plan/axes.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "symbolic/expr.hpp"

namespace brume::plan {
namespace {

using symbolic::Expr;

/// Axes of a mesh in all combinations.
std::vector<AxisSet> sets_of(const Mesh<int>& mesh) {
  std::vector<AxisSet> all;
  for (unsigned bits = 0; bits < 1u << mesh.sides().size(); ++bits) {
    AxisSet rest = model::all_axes;
    for (std::size_t i = 0; i < mesh.sides().size(); ++i)
      if ((bits >> i & 1) != 0) rest = rest.without(mesh.sides()[i].axis);
    all.push_back(rest);
  }
  return all;
}

/// Two ranks are of one group if they differ on its axes only.
std::vector<int> members_by_comparison(const Mesh<int>& mesh, int rank, AxisSet axes) {
  std::vector<int> found;
  for (int other = 0; other < mesh.size(); ++other) {
    int mine = rank, theirs = other;
    bool meet = true;
    for (const auto& [axis, size] : mesh.sides()) {
      if (!axes.contains(axis) && mine % size != theirs % size) meet = false;
      mine /= size;
      theirs /= size;
    }
    if (meet) found.push_back(other);
  }
  return found;
}

Spread<int> spread_by_counting(const std::vector<int>& ranks, int devices_per_node) {
  std::map<int, int> on_node;
  for (const int rank : ranks) ++on_node[rank / devices_per_node];
  for (const auto& [node, count] : on_node) EXPECT_EQ(count, on_node.begin()->second);
  return {int(on_node.size()), on_node.begin()->second};
}

void check(const Mesh<int>& mesh) {
  ASSERT_EQ(mesh.size(), 64);
  for (const AxisSet axes : sets_of(mesh))
    for (int rank = 0; rank < 64; ++rank) {
      const Coordinates at = coordinates(mesh, rank);
      EXPECT_EQ(index(mesh, at), rank);
      const std::vector<int> ranks = members(mesh, at, axes);
      ASSERT_EQ(ranks, members_by_comparison(mesh, rank, axes));
      EXPECT_EQ(int(ranks.size()), mesh.size(axes));
      EXPECT_EQ(ranks[std::size_t(index(mesh, at, axes))], rank);
      for (const int devices_per_node : {1, 2, 4, 8, 16, 32, 64}) {
        const Spread<int> expected = spread_by_counting(ranks, devices_per_node);
        const Spread<int> found = mesh.spread(axes, devices_per_node);
        EXPECT_EQ(found.nodes, expected.nodes);
        EXPECT_EQ(found.per_node, expected.per_node);
      }
    }
}

// Attention's and the experts' mapping of the same 64 ranks: tp cp dp = etp ep edp.
TEST(Axes, TwoMeshesMapTheSameRanks) {
  const Mesh<int> attention({{Axis::tp, 4}, {Axis::cp, 2}, {Axis::shard, 4}, {Axis::replica, 2}});
  const Mesh<int> experts({{Axis::tp, 2}, {Axis::ep, 8}, {Axis::shard, 2}, {Axis::replica, 2}});
  check(attention);
  check(experts);
  // An expert's gradients are summed over fewer ranks than those of attention.
  EXPECT_EQ(attention.size(AxisSet(model::all_axes).without(Axis::tp)), 16);
  EXPECT_EQ(experts.size(model::state_axes), 4);
  EXPECT_EQ(members(experts, coordinates(experts, 5), model::state_axes),
            (std::vector{5, 21, 37, 53}));
}

TEST(Axes, OrderOfSidesIsOrderOfRanks) {
  check(Mesh<int>({{Axis::replica, 2}, {Axis::cp, 8}, {Axis::tp, 4}}));
  check(Mesh<int>({{Axis::tp, 1}, {Axis::shard, 64}, {Axis::replica, 1}}));
}

// Nodes and ranks on each, of tp, dp, the shards of a replica, and of replicas.
TEST(Axes, GroupsLieOnNodesByHand) {
  struct Case {
    int devices_per_node, dp, tp, replicas;
    std::array<double, 8> expected;
  };
  for (const Case& c : {Case{8, 32, 1, 1, {1, 1, 4, 8, 4, 8, 1, 1}},
                        Case{8, 32, 1, 4, {1, 1, 4, 8, 1, 8, 4, 1}},   // one replica a node
                        Case{8, 32, 1, 2, {1, 1, 4, 8, 2, 8, 2, 1}},   // each on two
                        Case{8, 32, 1, 16, {1, 1, 4, 8, 1, 2, 4, 4}},  // four on each
                        Case{8, 8, 4, 4, {1, 4, 4, 2, 1, 2, 4, 1}},
                        Case{4, 2, 8, 1, {2, 4, 2, 1, 2, 1, 1, 1}},  // tp of two nodes
                        Case{4, 4, 8, 2, {2, 4, 4, 1, 2, 1, 2, 1}}}) {
    const auto numbers = [&](const auto& mesh, const auto& devices_per_node, auto&& value) {
      std::array<double, 8> found{};
      std::size_t next = 0;
      for (const AxisSet axes :
           {AxisSet(Axis::tp), model::data_axes, AxisSet(Axis::shard), AxisSet(Axis::replica)}) {
        const auto [nodes, per_node] = mesh.spread(axes, devices_per_node);
        found[next++] = value(nodes);
        found[next++] = value(per_node);
      }
      return found;
    };
    EXPECT_EQ(numbers(weights_mesh(c.tp, 1, c.dp, c.replicas), c.devices_per_node,
                      [](int number) { return double(number); }),
              c.expected);
    const std::map<std::string, double, std::less<>> at{{"m", double(c.devices_per_node)},
                                                        {"dp", double(c.dp)},
                                                        {"tp", double(c.tp)},
                                                        {"R", double(c.replicas)}};
    EXPECT_EQ(numbers(weights_mesh(Expr::variable("tp"), Expr(1.0), Expr::variable("dp"),
                                   Expr::variable("R")),
                      Expr::variable("m"), [&](const Expr& e) { return e.evaluate(at); }),
              c.expected);
  }
}

}  // namespace
}  // namespace brume::plan
