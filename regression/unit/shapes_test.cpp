#include "plan/shapes.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

namespace brume::plan {
namespace {

const model::Config twelve_heads{.num_layers = 6,
                                 .hidden_size = 96,
                                 .num_heads = 12,
                                 .ffn_size = 384,
                                 .seq_len = 32,
                                 .vocab_size = 100};
const hardware::Cluster one_node = hardware::NodeGroup{.nodes = 1, .devices_per_node = 4};
const hardware::Cluster two_nodes = hardware::NodeGroup{.nodes = 2, .devices_per_node = 4};

/// The microbatches of each tp.
std::map<int, std::set<int>> splits(const hardware::Cluster& cluster,
                                    const deck::SearchKeys& search, int global_batch = 8,
                                    const model::Config& model = twelve_heads) {
  std::map<int, std::set<int>> found;
  for (const StageShape& shape : stage_shapes(model, global_batch, cluster, 0, search))
    found[shape.tp].insert(shape.microbatch);
  return found;
}

const std::set<int> divisors_of_eight{1, 2, 4, 8};

// A stage may take three of a node's four devices while another one takes the fourth.
TEST(StageShapes, ThreeOfFourDevicesAreADegreeOfTp) {
  model::Config divisible = twelve_heads;
  divisible.seq_len = 48;  // by 3
  const auto found = splits(one_node, {}, 8, divisible);
  EXPECT_EQ(found.size(), 4u);
  EXPECT_EQ(found.at(3), divisors_of_eight);
}

// 3 divides neither 32, 64 tokens nor any other microbatch of a batch of 8.
TEST(StageShapes, TpDividesTheTokensOfAMicrobatch) {
  EXPECT_FALSE(splits(one_node, {}).contains(3));
  EXPECT_EQ(splits(one_node, {}, 24).at(3), (std::set{3, 6, 12, 24}));
}

// Two equal stages on four devices have two each.
TEST(StageShapes, EqualStagesFillTheCluster) {
  const deck::SearchKeys two_alike{.stages = {2}, .unequal_stages = false};
  for (const StageShape& shape : stage_shapes(twelve_heads, 8, one_node, 0, two_alike))
    EXPECT_EQ(shape.devices(), 2);
  const auto found = splits(one_node, two_alike);
  EXPECT_EQ(found.at(1), (std::set{1, 2, 4}));  // beside dp = 2
  EXPECT_EQ(found.at(2), divisors_of_eight);
  EXPECT_EQ(found.size(), 2u);
}

TEST(StageShapes, TensorParallelGroupsStayWithinNodes) {
  for (const StageShape& shape : stage_shapes(twelve_heads, 48, two_nodes, 0, {})) {
    EXPECT_EQ(shape.devices(), shape.dp * shape.tp);
    EXPECT_EQ(shape.devices_per_node % shape.tp, 0);
    EXPECT_TRUE(shape.nodes == 1 || shape.devices_per_node == 4);
  }
}

// 8 takes both nodes of four, 6 is no whole number of them.
TEST(StageShapes, AListedTpMayTakeWholeNodes) {
  model::Config model = twelve_heads;
  model.num_heads = 24;
  const deck::SearchKeys listed{.tp = {6, 8}, .microbatch = {1}};
  EXPECT_EQ(stage_shapes(model, 8, two_nodes, 0, listed),
            (std::vector<StageShape>{
                {.nodes = 2, .devices_per_node = 4, .dp = 1, .tp = 8, .microbatch = 1}}));
}

// 2 divides 6 experts and not their width of 9; 4 neither. Of four ranks two may divide experts.
TEST(StageShapes, ExpertsAreDividedOrCut) {
  model::Config model = twelve_heads;
  model.num_experts = 6, model.experts_per_token = 2, model.expert_ffn_size = 9;
  const auto found = [&](const deck::SearchKeys& search) {
    std::set<std::pair<int, int>> degrees;
    for (const StageShape& shape : stage_shapes(model, 8, one_node, 0, search))
      degrees.emplace(shape.tp, shape.ep);
    return degrees;
  };
  using Degrees = std::set<std::pair<int, int>>;
  EXPECT_EQ(found({}), (Degrees{{1, 1}, {1, 2}, {2, 2}}));
  model.expert_ffn_size = 8;
  EXPECT_EQ(found({}), (Degrees{{1, 1}, {1, 2}, {2, 1}, {2, 2}, {4, 1}}));
  EXPECT_EQ(found({.ep = {2}}), (Degrees{{1, 2}, {2, 2}}));
  EXPECT_EQ(found({.ep = {1}}), (Degrees{{1, 1}, {2, 1}, {4, 1}}));
  const auto sends = [&](const deck::SearchKeys& search) {
    std::set<std::tuple<int, int, int>> ways;
    for (const StageShape& shape : stage_shapes(model, 8, one_node, 0, search))
      if (shape.ep > 1) ways.emplace(shape.tp, shape.ep, shape.dispatch_tokens);
    return ways;
  };
  using Ways = std::set<std::tuple<int, int, int>>;
  EXPECT_EQ(sends({}), (Ways{{1, 2, 0}, {1, 2, 1}, {2, 2, 0}}));
  EXPECT_EQ(sends({.dispatch_tokens = {1}}), (Ways{{1, 2, 1}, {2, 2, 0}}));
  model.shared_expert_ffn_size = 6;
  EXPECT_EQ(found({}), (Degrees{{1, 1}, {1, 2}, {2, 1}, {2, 2}}));
  model.optimizer = &model::muon;
  EXPECT_EQ(found({}), (Degrees{{1, 1}, {2, 1}, {2, 2}}));
  model.qk_norm = model.qk_norm_joint = true;
  EXPECT_EQ(found({}), (Degrees{{1, 1}}));
}

TEST(StageShapes, LongSequencesMayHaveTiles) {
  model::Config model = twelve_heads;
  model.hidden_size = 240, model.seq_len = 9216;
  const hardware::Cluster device = hardware::NodeGroup{.nodes = 1, .devices_per_node = 1};
  const auto found = [&](const deck::SearchKeys& search) {
    std::set<std::pair<int, int>> tiles;
    for (const StageShape& shape : stage_shapes(model, 2, device, 0, search))
      tiles.emplace(shape.microbatch, shape.mlp_tiles);
    return tiles;
  };
  using Tiles = std::set<std::pair<int, int>>;
  EXPECT_EQ(found({}), (Tiles{{1, 1}, {1, 39}, {2, 1}}));
  EXPECT_EQ(found({.mlp_tiles = {1}}), (Tiles{{1, 1}, {2, 1}}));
  EXPECT_EQ(found({.mlp_tiles = {4, 8}}), (Tiles{{1, 4}, {1, 8}, {2, 4}, {2, 8}}));
  model.seq_len = 8192;
  EXPECT_EQ(found({}), (Tiles{{1, 1}, {2, 1}}));
  model.hidden_size = 1200, model.seq_len = 9216;
  EXPECT_EQ(found({}), (Tiles{{1, 1}, {2, 1}}));
}

// 24 query heads and 6 key heads: ranks have whole ones.
TEST(StageShapes, RanksShareLongSequences) {
  model::Config model = twelve_heads;
  model.family = &model::family("llama");
  model.num_heads = 24, model.num_kv_heads = 6, model.hidden_size = 240, model.seq_len = 9216;
  const hardware::Cluster node = hardware::NodeGroup{.nodes = 1, .devices_per_node = 8};
  const auto found = [&](const deck::SearchKeys& search) {
    std::set<std::pair<int, int>> degrees;
    for (const StageShape& shape : stage_shapes(model, 8, node, 0, search)) {
      degrees.emplace(shape.tp, shape.cp);
      EXPECT_TRUE(shape.cp == 1 || shape.microbatch == 1);
      EXPECT_EQ(shape.devices(), shape.dp * shape.cp * shape.tp);
    }
    return degrees;
  };
  using Degrees = std::set<std::pair<int, int>>;
  EXPECT_EQ(
      found({.gather_keys = {0}}),
      (Degrees{
          {1, 1}, {1, 2}, {1, 3}, {1, 6}, {2, 1}, {2, 3}, {3, 1}, {3, 2}, {4, 1}, {6, 1}, {8, 1}}));
  EXPECT_EQ(found({.cp = {2}, .gather_keys = {0}}), (Degrees{{1, 2}, {3, 2}}));
  EXPECT_EQ(found({.cp = {4, 5}, .gather_keys = {1}}), (Degrees{{1, 4}, {2, 4}}));
  model.seq_len = 8192;
  EXPECT_EQ(found({}), (Degrees{{1, 1}, {2, 1}, {4, 1}, {8, 1}}));
  EXPECT_EQ(found({.cp = {2, 4}, .gather_keys = {0}}), (Degrees{{1, 2}}));
  EXPECT_EQ(found({.cp = {2, 4}}), (Degrees{{1, 2}, {1, 4}, {2, 2}, {2, 4}, {4, 2}}));
}

// A kernel of GPUs holds a number for each of 2^23 queries of a key head: those of a rank's tokens
// if ranks gather keys.
TEST(StageShapes, LongSequencesOnDevicesNeedRanksThatGatherKeys) {
  model::Config model = twelve_heads;
  model.family = &model::family("llama");
  model.num_kv_heads = 3;
  model.seq_len = 1 << 22;
  hardware::Cluster devices = one_node;
  for (const bool on_device : {false, true}) {
    devices.groups[0].on_device = on_device;
    bool whole = false;
    int gathered = 0;
    for (const StageShape& shape :
         stage_shapes(model, 1, devices, 0, {.tp = {1}, .mlp_tiles = {1}})) {
      whole |= shape.gather_keys == 0;
      gathered += shape.gather_keys;
    }
    EXPECT_EQ(whole, !on_device);
    EXPECT_EQ(gathered, 2);  // cp = 2 and 4
  }
  EXPECT_NE(device_fault(model, {.cp = 2}).find("4 query heads per key head x 4194304 queries"),
            std::string::npos);
}

TEST(StageShapes, TheListsOfTheSearchAreKept) {
  const deck::SearchKeys listed{.dp = {2}, .tp = {2, 5}, .microbatch = {2, 3, 64}};
  const auto shapes = stage_shapes(twelve_heads, 256, one_node, 0, listed);
  EXPECT_EQ(shapes,
            (std::vector<StageShape>{{.devices_per_node = 4, .dp = 2, .tp = 2, .microbatch = 2},
                                     {.devices_per_node = 4, .dp = 2, .tp = 2, .microbatch = 64}}));
}

TEST(StageShapes, UnlistedMicrobatchesEndAt32) {
  EXPECT_EQ(*splits(one_node, {}, 256).at(1).rbegin(), 32);
}

TEST(StageShapes, OtherStagesNeedADeviceEach) {
  EXPECT_TRUE(may_hold(3, 2, one_node, {}));
  EXPECT_FALSE(may_hold(3, 3, one_node, {}));
  EXPECT_TRUE(may_hold(2, 2, one_node, {.unequal_stages = false}));
  EXPECT_FALSE(may_hold(2, 1, one_node, {.unequal_stages = false}));
}

}  // namespace
}  // namespace brume::plan
