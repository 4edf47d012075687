// A strategy chooses each number and share of a stage once, and its order, hash and parts agree.
#include "../../src/tuner/strategy.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "../../src/tuner/space.hpp"
#include "../../src/tuner/times.hpp"
#include "base/deadline.hpp"
#include "planning_samples.hpp"

namespace brume::tuner {
namespace {

constexpr Layout mesh{.nodes = 2, .devices_per_node = 4, .dp = 8};

Strategy random_strategy(std::mt19937& random) {
  Strategy found{.sharding = {int(random() % 4), 1 + int(random() % 2)},
                 .layers = 2 + int(random() % 30),
                 .stores_rest = random() % 2 == 0};
  for (double& ratio : found.ratios) ratio = samples::pick<double>(random, {0.0, 0.5, 1.0});
  found.level = int(random() % unsigned(2 * found.layers + 1)) - found.layers;
  if (found.stores_rest) found.level = std::abs(found.level);
  return found;
}

TEST(Strategy, SetsWhatASearchChoosesOfAStage) {
  const std::set<std::string> of_layouts{
      "microbatch", "dp", "cp", "gather_keys", "tp", "ep", "dispatch_tokens", "mlp_tiles"};
  for (const plan::Knob& knob : plan::knobs) {
    const bool number = std::holds_alternative<int plan::Stage::*>(knob.member);
    if (std::holds_alternative<std::monostate>(knob.search) || of_layouts.contains(knob.name) ||
        !(number || std::holds_alternative<double plan::Stage::*>(knob.member)))
      continue;
    std::mt19937 random(5);
    std::set<double> values;
    for (int trial = 0; trial < 100; ++trial) {
      plan::Plan plan{.stages = {plan::Stage{}}};
      random_strategy(random).apply_to(plan.stages[0]);
      values.insert(plan::number(knob, plan, 0));
    }
    EXPECT_GT(values.size(), 1u) << knob.name;
  }
}

TEST(Strategy, DiffersWhereItsStageDoes) {
  std::mt19937 random(7);
  std::map<Strategy, plan::Stage> known;
  for (int trial = 0; trial < 2000; ++trial) {
    Strategy one = random_strategy(random);
    if (!one.parts_fit() || one.repeats()) continue;
    one.layers = 2, one.level = trial % 3, one.stores_rest = false;
    plan::Stage stage;
    one.apply_to(stage);
    for (const auto& [other, its_stage] : known) {
      ASSERT_EQ(one == other, stage == its_stage);
      ASSERT_TRUE(one != other || Strategy::Hash()(one) == Strategy::Hash()(other));
    }
    known.emplace(one, stage);
  }
  EXPECT_GT(known.size(), 100u);
}

TEST(Strategy, HasARowThatItsLevelDoesNotChange) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 200; ++trial) {
    const Strategy one = random_strategy(random), other = random_strategy(random);
    EXPECT_EQ(one.row(), one.at_level(one.layers).row());
    EXPECT_EQ(one.row() == other.row(), one.at_level(other.level) == other);
  }
}

TEST(Strategy, IsTheSumOfItsChunks) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 500; ++trial) {
    const Strategy all = random_strategy(random);
    const int chunks = 2 + int(random() % unsigned(all.layers - 1));
    int layers = 0, recomputed = 0, stored = 0;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const Strategy part = all.of_chunk(chunk, chunks);
      EXPECT_TRUE(part.layers == all.layers / chunks || part.layers == all.layers / chunks + 1);
      EXPECT_EQ(all.of_chunk(chunks - 1 - chunk, chunks, true).layers, part.layers);
      EXPECT_GE(part.stored_layers(), 0);
      EXPECT_LE(part.ckpt_layers() + part.stored_layers(), part.layers);
      layers += part.layers;
      recomputed += part.ckpt_layers();
      stored += part.stored_layers();
    }
    EXPECT_EQ(layers, all.layers);
    EXPECT_EQ(recomputed, all.ckpt_layers());
    EXPECT_EQ(stored, all.stored_layers());
  }
}

TEST(Memo, FindsEachValueOnceAndForgetsWhatAnErrorLeftOpen) {
  Memo<int> memo;
  std::vector<Strategy> keys;
  for (const int layers : {1, 2, 1, 3}) keys.push_back({.layers = layers});
  int found = 0;
  const auto layers_of = [&](const std::vector<Strategy>& missing) {
    std::vector<int> values;
    for (const Strategy& one : missing) values.push_back(one.layers), ++found;
    return values;
  };
  const auto throws = [](const std::vector<Strategy>&) -> std::vector<int> { throw OutOfTime(); };
  const std::span<const Strategy> all(keys), first_two(keys.data(), 2);
  EXPECT_THROW(memo.of(all, &Strategy::row, throws), OutOfTime);
  memo.of(first_two, &Strategy::row, layers_of);
  EXPECT_THROW(memo.of(all, &Strategy::row, throws), OutOfTime);
  const std::vector<const int*> values = memo.of(all, &Strategy::row, layers_of);
  for (std::size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(*values[i], keys[i].layers);
  EXPECT_EQ(values[0], values[2]);
  EXPECT_EQ(found, 3);
}

TEST(PointGroups, AreReadOneByOneAndPricedTogether) {
  PointGroups groups;
  for (const int size : {2, 0, 1}) {
    groups.begin_group();
    for (int i = 0; i < size; ++i) groups.add({i, {.layers = size}});
  }
  for (Point& point : groups.all()) point.stable_s = point.layers();
  ASSERT_EQ(groups[0].size(), 2u);
  EXPECT_TRUE(groups[1].empty());
  ASSERT_EQ(groups[2].size(), 1u);
  EXPECT_EQ(groups[0][1].layout, 1);
  EXPECT_EQ(groups[0][1].stable_s, 2.0);
  EXPECT_EQ(groups[2][0].stable_s, 1.0);
}

TEST(Axes, ListsEachRowOnceAndTheLowestAmongThem) {
  deck::SearchKeys keys;
  keys.zero_levels = {0, 3};
  keys.shard_within_node = true;
  for (const plan::Share& share : plan::shares) keys.*share.list() = {0.0};
  keys.optim_offload = {1.0, 0.0, 1.0};
  keys.optim_disk = {0.0, 0.75};
  keys.host_update = {0.0, 0.5};
  const Axes axes(keys);
  const std::vector<Strategy> rows = axes.rows(mesh, 4);
  // Two ratios, of which three pairs of parts fit, and three ways to shard.
  EXPECT_EQ(rows.size(), 2u * 3u * 3u);
  EXPECT_EQ(std::set<Strategy>(rows.begin(), rows.end()).size(), rows.size());
  const std::vector<Strategy> lowest = axes.lowest(mesh, 4);
  EXPECT_EQ(lowest.size(), axes.shardings(mesh).size());
  for (const Strategy& one : lowest) {
    EXPECT_EQ(one.ratios, Ratios{});
    EXPECT_EQ(std::ranges::count(rows, one.row()), 1);
  }
  for (const Strategy& one : axes.in_memory().rows(mesh, 4))
    for (std::size_t i = 0; i < one.ratios.size(); ++i)
      EXPECT_TRUE(!plan::shares[i].on_disk() || one.ratios[i] == 0.0);
}

// Experts leave 4, 2 and 1 of 8 data-parallel ranks on 2 nodes with the same weights.
TEST(Axes, ShardsOverRanksWithTheSameWeights) {
  deck::SearchKeys keys;
  keys.zero_levels = {0, 3};
  keys.shard_within_node = true;
  const Axes axes(keys);
  const auto shardings = [&](int ep) {
    Layout divided = mesh;
    divided.ep = ep;
    return axes.shardings(divided);
  };
  const Sharding none{0, 1}, over_all{3, 1}, within_nodes{3, 2};
  EXPECT_EQ(shardings(1), (std::vector{none, over_all, within_nodes}));
  EXPECT_EQ(shardings(2), (std::vector{none, over_all, within_nodes}));
  EXPECT_EQ(shardings(4), (std::vector{none, over_all}));
  EXPECT_EQ(shardings(8), (std::vector{none}));
}

}  // namespace
}  // namespace brume::tuner
