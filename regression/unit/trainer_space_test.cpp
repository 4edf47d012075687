#include "interop/trainer_space.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string_view>

#include "interop/megatron.hpp"
#include "interop/torchtitan.hpp"
#include "llama_deck.hpp"
#include "refusal.hpp"

namespace brume::interop {
namespace {

struct TrainerSpaces : testing::TestWithParam<const char*> {
  deck::Deck deck = [] {
    deck::Deck parsed = deck::parse(test::llama_deck, "a.toml");
    parsed.search.trainer = GetParam();
    return parsed;
  }();
  model::Config model = model::config(deck.model, "bf16");
  hardware::Cluster cluster = hardware::cluster(deck.cluster);
};

template <class T>
T pick(std::mt19937& random, const std::vector<T>& values) {
  return values[random() % values.size()];
}

/// A plan that one of these searches may find, each stage by itself.
plan::Plan random_plan(std::mt19937& random, const deck::SearchKeys& keys) {
  const int drawn = pick(random, keys.stages), size = drawn > 2 ? 4 : drawn, devices = 16 / size,
            chunks = size > 1 && keys.chunks.empty() ? pick<int>(random, {1, 2, 4}) : 1,
            num_stages = size * chunks;
  int tp, dp;
  do {
    tp = pick<int>(random, {1, 2, 4});
    dp = devices / tp;
  } while (!keys.dp.empty() && std::ranges::find(keys.dp, dp) == keys.dp.end());
  plan::Plan plan{.global_batch = 64, .microbatches = 64 / dp, .stages = {}};
  if (size > 1) plan.order.run_ahead = pick(random, keys.run_ahead);
  plan.order.chunks = chunks;
  if (chunks > 1) {
    EXPECT_TRUE(keys.whole_rounds);
    plan.order.run_ahead = 2;
  }
  for (int i = 0; i < num_stages; ++i) {
    plan::Stage& stage = plan.stages.emplace_back();
    stage.layers = 32 / num_stages + (i == 0 ? 1 : i == 1 ? -1 : 0);
    if (num_stages == 1) stage.layers = 32;
    stage.first_layer = i == 0 ? 0
                               : plan.stages[std::size_t(i) - 1].first_layer +
                                     plan.stages[std::size_t(i) - 1].layers;
    stage.nodes = std::max(1, devices / 8);
    stage.devices_per_node = devices / stage.nodes;
    stage.dp = dp;
    stage.tp = tp;
    stage.zero_level = pick(random, keys.zero_levels);
    stage.replicas = stage.zero_level > 0 && stage.nodes > 1 && random() % 2 == 0 ? 2 : 1;
    if (i >= size) {
      stage.zero_level = plan.stages[std::size_t(i % size)].zero_level;
      stage.replicas = plan.stages[std::size_t(i % size)].replicas;
    }
    stage.ckpt_layers = int(random() % std::size_t(stage.layers + 1));
    stage.weight_offload_ratio = pick(random, keys.weight_offload);
    stage.grad_offload_ratio = pick(random, keys.grad_offload);
    stage.optim_offload_ratio = pick(random, keys.optim_offload);
    stage.act_offload_ratio = pick(random, keys.act_offload);
  }
  return plan;
}

// What is searched, made alike, is what the trainer takes; and it is a plan.
TEST_P(TrainerSpaces, TakeWhateverIsFoundInThem) {
  std::mt19937 random(5);
  const TrainerSpace space = trainer_space(deck, model, cluster);
  ASSERT_FALSE(space.searches.empty());
  for (const deck::SearchKeys& keys : space.searches) {
    EXPECT_FALSE(keys.unequal_stages);
    EXPECT_TRUE(keys.store_rest);  // neither trainer has stored layers beside others
    for (int trial = 0; trial < 200; ++trial) {
      const plan::Plan plan = space.nearest(random_plan(random, keys));
      EXPECT_NO_THROW(check_for_trainer(deck, model, plan)) << plan::text(plan);
      EXPECT_NO_THROW(plan::check(plan, model, cluster)) << plan::text(plan);
      EXPECT_EQ(space.nearest(plan), plan) << plan::text(plan);
      EXPECT_EQ(untold(plan, "Another"), "") << plan::text(plan);
    }
  }
}

// Nothing is sharded or offloaded less, nor recomputed less, in any stage.
TEST_P(TrainerSpaces, MakeStagesAlikeByThoseThatSaveMost) {
  std::mt19937 random(6);
  const TrainerSpace space = trainer_space(deck, model, cluster);
  for (int trial = 0; trial < 200; ++trial) {
    const plan::Plan plan = random_plan(random, space.searches.back());
    const plan::Plan alike = space.nearest(plan);
    for (std::size_t i = 0; i < plan.stages.size(); ++i) {
      const plan::Stage &before = plan.stages[i], &after = alike.stages[i];
      EXPECT_GE(after.zero_level, before.zero_level);
      EXPECT_LE(after.replicas, before.replicas);
      EXPECT_GE(after.ckpt_layers, before.ckpt_layers);
      EXPECT_GE(after.optim_offload_ratio, before.optim_offload_ratio);
      EXPECT_EQ(after.layers, before.layers);
    }
  }
}

TEST_P(TrainerSpaces, NameTheKeyThatLeavesNothing) {
  deck.search.act_offload = {0.5};
  const std::string what = test::refusal([&] { trainer_space(deck, model, cluster); });
  EXPECT_NE(what.find("search.act_offload"), std::string::npos) << what;
  deck.search.act_offload = {0.0, 0.5};
  deck.search.stages = {2};
  for (const deck::SearchKeys& keys : trainer_space(deck, model, cluster).searches) {
    EXPECT_EQ(keys.act_offload, std::vector{0.0});
    EXPECT_EQ(keys.stages, std::vector{2});
    EXPECT_EQ(keys.run_ahead, std::vector{1});
    EXPECT_EQ(keys.chunks.empty(), std::string_view(GetParam()) == "megatron");
  }
  deck.search.run_ahead = {1};
  for (const deck::SearchKeys& keys : trainer_space(deck, model, cluster).searches)
    EXPECT_EQ(keys.chunks, std::vector{1});
}

// TorchTitan gathers keys, and shards state over the ranks that share a sequence.
TEST_P(TrainerSpaces, ShareLongSequences) {
  if (std::string_view(GetParam()) == "megatron") return;
  const auto shared = [&] {
    int count = 0;
    for (const deck::SearchKeys& keys : trainer_space(deck, model, cluster).searches) {
      if (keys.cp == std::vector{1}) continue;
      EXPECT_EQ(keys.gather_keys, std::vector{1});
      for (const int level : keys.zero_levels) EXPECT_GE(level, 2);
      ++count;
    }
    return count;
  };
  EXPECT_EQ(shared(), 0);
  model.seq_len = 32768;
  EXPECT_GT(shared(), 0);
  deck.search.gather_keys = {0};
  EXPECT_EQ(shared(), 0);
}

// TorchTitan's ranks of sharded state divide experts, and send tokens.
TEST_P(TrainerSpaces, DivideExpertsAsTheTrainerDoes) {
  const bool megatron = std::string_view(GetParam()) == "megatron";
  model.num_experts = 8, model.experts_per_token = 2, model.expert_ffn_size = model.ffn_size;
  for (const deck::SearchKeys& keys : trainer_space(deck, model, cluster).searches) {
    EXPECT_EQ(keys.dispatch_tokens, megatron ? std::vector<int>{} : std::vector{1});
    EXPECT_EQ(keys.zero_levels == (std::vector{2, 3}), !megatron || keys.zero_levels[0] == 2);
  }
}

// A list that leaves nothing of one half of the space leaves the other half.
TEST_P(TrainerSpaces, SearchTheHalfThatAListLeaves) {
  const bool megatron = std::string_view(GetParam()) == "megatron";
  const auto searches = [&](auto change) {
    deck::Deck changed = deck;
    change(changed.search);
    const std::vector<deck::SearchKeys> found = trainer_space(changed, model, cluster).searches;
    EXPECT_FALSE(found.empty());
    return found;
  };
  if (megatron) {
    for (const deck::SearchKeys& keys :
         searches([](deck::SearchKeys& search) { search.optim_offload = {0.5}; })) {
      EXPECT_EQ(keys.optim_offload, std::vector{0.5});
      EXPECT_EQ(keys.zero_levels, (std::vector{0, 1}));
    }
  } else {
    for (const deck::SearchKeys& keys :
         searches([](deck::SearchKeys& search) { search.zero_levels = {0}; }))
      EXPECT_EQ(keys.optim_offload, std::vector{0.0});
  }
  for (const deck::SearchKeys& keys :
       searches([](deck::SearchKeys& search) { search.run_ahead = {2}; }))
    EXPECT_EQ(keys.stages, std::vector{1});
}

TEST_P(TrainerSpaces, NameTheKeysThatTogetherLeaveNothing) {
  const bool megatron = std::string_view(GetParam()) == "megatron";
  deck.search.zero_levels = {megatron ? 2 : 0};
  deck.search.optim_offload = {megatron ? 0.5 : 1.0};
  const std::string what = test::refusal([&] { trainer_space(deck, model, cluster); });
  EXPECT_NE(what.find("search.optim_offload and search.zero_levels: leave one of them out"),
            std::string::npos)
      << what;
}

// Layers that make outputs of norms and activations again keep them there; others are as planned.
TEST(Untold, CountsTheLayersThatKeepMoreThere) {
  plan::Plan plan{.stages = {{.layers = 20, .ckpt_layers = 12, .stored_layers = 5},
                             {.first_layer = 20, .layers = 12}}};
  const std::string said = untold(plan, "Another");
  EXPECT_NE(said.find("Another has nothing like no_recompute_layers (here 5 of 32 layers)"),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("15 of them make these again"), std::string::npos) << said;
  plan.stages[0].stored_layers = 8;
  plan.stages[1].ckpt_layers = 12;
  EXPECT_EQ(untold(plan, "Another"), "");
}

TEST(Untold, NamesTheNodesInTheirOrder) {
  plan::Plan plan{.stages = {{.layers = 1, .stored_layers = 1}}};
  plan.node_order = {2, 0, 1};
  EXPECT_EQ(untold(plan, "Another"), "start it on nodes 2, 0, 1, in this order");
}

INSTANTIATE_TEST_SUITE_P(Interop, TrainerSpaces, testing::Values("megatron", "torchtitan"));

}  // namespace
}  // namespace brume::interop
