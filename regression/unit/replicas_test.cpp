#include "engine/replicas.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <vector>

#include "contract.hpp"

namespace brume::engine {
namespace {

using Ranks = std::vector<std::vector<int>>;

/// Three data-parallel ranks of two tensor-parallel ones, and a stage of one rank behind them.
class Replicas : public ::testing::TestWithParam<std::tuple<int, model::Precision>> {
 protected:
  Replicas() {
    std::mt19937 random(3);
    const auto [zero_level, precision] = GetParam();
    model_ = {.num_layers = 2,
              .hidden_size = 32,
              .num_heads = 4,
              .ffn_size = 64,
              .seq_len = 8,
              .vocab_size = 31,
              .precision = precision};
    plan_ = test::plan_of(random, model_, {{3, 2, 1}, {1, 1, 3}});
    plan_.stages[0].zero_level = zero_level;
  }
  model::Config model_;
  int rank_of(int dp_rank, int tp_rank) const { return dp_rank * plan_.stages[0].tp + tp_rank; }

  plan::Plan plan_;
};

TEST_P(Replicas, AreAlikeUntilABitFlips) {
  const test::TokenFixture tokens(model_.vocab_size);
  const data::Sampler data = tokens.sampler(model_.seq_len);
  comm::run_local(plan_.devices(), [&](comm::Communicator& world) {
    Engine engine(plan_, model_, test::contract_settings(4), world);
    for (int i = 0; i < 3; ++i) {
      engine.step(data);
      EXPECT_FALSE(compare_replicas(engine, plan_, world));
    }
    // One element of a matrix that tensor parallelism splits, on one rank.
    const int spoilt = rank_of(1, 1);
    std::string name;
    for (const Slab& slab : engine.slabs()) {
      const bool computes = model_.precision == model::Precision::fp32 || slab.rounded;
      if (slab.kind != "weight" || !computes || slab.global_shape.size() != 2) continue;
      if (slab.name.find("layers.0") == std::string::npos) continue;
      std::array<float, 1> value{};
      get_values(slab, slab.elements - 1, value);
      if (world.rank() == spoilt) set_values(slab, slab.elements - 1, std::array{-2 * value[0]});
      name = slab.name;
      break;
    }
    const auto difference = compare_replicas(engine, plan_, world);
    if (std::get<0>(GetParam()) == 3) {
      EXPECT_FALSE(difference);  // nobody else holds it
      return;
    }
    ASSERT_TRUE(difference);
    if (world.rank() == spoilt) {
      EXPECT_EQ(difference->parameter, name);
    }
    const int first = rank_of(0, 1), third = rank_of(2, 1);
    EXPECT_EQ(difference->ranks, (Ranks{{first, third}, {spoilt}}));
  });
}

// Corrections of a router are in fp32, also where layers compute with rounded weights.
TEST(CorrectedReplicas, AreAlikeUntilABitFlips) {
  const std::vector<model::Config> special = test::special_models();
  model::Config model =
      *std::ranges::find_if(special, [](const auto& one) { return one.balance_rate > 0.0; });
  model.precision = model::Precision::bf16;
  const plan::Plan plan = plan::equal_stages(model, 8, 1, {.microbatch = 2, .dp = 2});
  const test::TokenFixture tokens(model.vocab_size);
  const data::Sampler data = tokens.sampler(model.seq_len);
  comm::run_local(2, [&](comm::Communicator& world) {
    Engine engine(plan, model, test::contract_settings(4), world);
    engine.step(data);
    EXPECT_FALSE(compare_replicas(engine, plan, world));
    for (const Slab& slab : engine.slabs())
      if (world.rank() == 1 && slab.name == "layers.2.mlp.router.correction")
        set_values(slab, 0, std::array{0.25F + 0x1p-20F});
    const auto difference = compare_replicas(engine, plan, world);
    ASSERT_TRUE(difference);
    if (world.rank() == 1) {
      EXPECT_EQ(difference->parameter, "layers.2.mlp.router.correction");
    }
  });
}

// Four data-parallel ranks in two replicas: each shard of the weights is there twice.
TEST(ShardedReplicas, AreComparedShardByShard) {
  const model::Config model{.num_layers = 2,
                            .hidden_size = 32,
                            .num_heads = 4,
                            .ffn_size = 64,
                            .seq_len = 8,
                            .vocab_size = 31};
  plan::Plan plan = test::one_rank_plan(model, 8);
  plan.microbatches = 2;
  plan.stages[0] = {.layers = 2, .devices_per_node = 4, .dp = 4, .zero_level = 3, .replicas = 2};
  const test::TokenFixture tokens(model.vocab_size);
  const data::Sampler data = tokens.sampler(model.seq_len);
  comm::run_local(4, [&](comm::Communicator& world) {
    Engine engine(plan, model, test::contract_settings(4), world);
    for (int i = 0; i < 3; ++i) {
      engine.step(data);
      EXPECT_FALSE(compare_replicas(engine, plan, world));
    }
    for (const Slab& slab : engine.slabs())
      if (world.rank() == 3 && slab.kind == "weight" && slab.global_shape.size() == 2) {
        set_values(slab, 0, std::array{7.0F});
        break;
      }
    const auto difference = compare_replicas(engine, plan, world);
    ASSERT_TRUE(difference);
    // Nobody knows which of two is right.
    Ranks ranks = difference->ranks;
    std::ranges::sort(ranks);
    EXPECT_EQ(ranks, (Ranks{{1}, {3}}));
  });
}

INSTANTIATE_TEST_SUITE_P(Engine, Replicas,
                         ::testing::Combine(::testing::Values(0, 1, 2, 3),
                                            ::testing::Values(model::Precision::fp32,
                                                              model::Precision::bf16)));

}  // namespace
}  // namespace brume::engine
