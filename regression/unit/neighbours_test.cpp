// Plans that differ from a plan in one knob.
#include "plan/neighbours.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "plan/knobs.hpp"
#include "planning_samples.hpp"

namespace brume::plan {
namespace {

/// One node of as many devices as a plan has, with a disk.
hardware::Cluster cluster_of(const Plan& plan) {
  return hardware::NodeGroup{.nodes = 1,
                             .devices_per_node = plan.devices(),
                             .memory_bytes = std::int64_t{1} << 40,
                             .host_memory_bytes = std::int64_t{1} << 40,
                             .disk_bytes = std::int64_t{1} << 40};
}

/// Two stages with some of everything.
Plan with_savings() {
  Plan plan{.global_batch = 32, .microbatches = 4, .stages = {}};
  for (int i = 0; i < 2; ++i)
    plan.stages.push_back({.first_layer = 4 * i,
                           .layers = 4,
                           .devices_per_node = 8,
                           .microbatch = 2,
                           .dp = 4,
                           .tp = 2,
                           .zero_level = 1,
                           .ckpt_layers = 1,
                           .stored_layers = 1,
                           .optim_offload_ratio = 0.5,
                           .act_offload_ratio = 0.5});
  return plan;
}

std::vector<Plan> all_of(const Plan& plan, const deck::SearchKeys& keys) {
  return neighbours(plan, samples::small_model(8), cluster_of(plan), keys);
}

bool any(const std::vector<Plan>& plans, const auto& holds) {
  return std::ranges::any_of(plans, holds);
}

TEST(Neighbours, AreValidAndDiffer) {
  std::mt19937 random(3);
  const model::Config model = samples::small_model(8);
  for (int trial = 0; trial < 40; ++trial) {
    Plan plan = samples::random_plan(random, 8);
    plan.order.run_ahead = 1 + trial % 2;
    const hardware::Cluster cluster = cluster_of(plan);
    for (const Plan& other : neighbours(plan, model, cluster, {})) {
      EXPECT_NO_THROW(check(other, model, cluster)) << text(other);
      EXPECT_FALSE(other == plan) << text(other);
    }
  }
}

// A new knob joins by its row; those that follow from others have none of their own.
TEST(Neighbours, EachKnobOfTheSearchChanges) {
  deck::SearchKeys keys;
  keys.host_update = {0.0, 1.0};
  const Plan plan = with_savings();
  const std::vector<Plan> all = all_of(plan, keys);
  for (const Knob& knob : knobs) {
    const bool derived = std::holds_alternative<Derived>(knob.member);
    if (std::holds_alternative<std::monostate>(knob.search) || derived) continue;
    const std::string name = knob.name;
    const bool of_all_models = name != "ep" && name != "dispatch_tokens";
    if (!of_all_models || name == "cp" || name == "gather_keys" || name == "mlp_tiles") continue;
    EXPECT_TRUE(any(all, [&](const Plan& other) {
      return number(knob, other, 0) != number(knob, plan, 0);
    })) << knob.name;
  }
}

TEST(Neighbours, WorkInOtherTiles) {
  const model::Config model = samples::small_model(8);
  Plan plan = equal_stages(model, 8, 2, {.dp = 4});
  const hardware::Cluster cluster = cluster_of(plan);
  const auto has = [](int tiles) {
    return [=](const Plan& other) { return other.stages[1].mlp_tiles == tiles; };
  };
  EXPECT_FALSE(any(neighbours(plan, model, cluster, {}), has(4)));
  EXPECT_TRUE(any(neighbours(plan, model, cluster, {.mlp_tiles = {1, 4}}), has(4)));
  plan.stages[1].mlp_tiles = 4;
  EXPECT_TRUE(any(neighbours(plan, model, cluster, {.mlp_tiles = {1, 4}}), has(1)));
}

TEST(Neighbours, DivideWholeExperts) {
  model::Config model = samples::small_model(8);
  model.family = &model::family("llama");
  model.num_experts = 4, model.experts_per_token = 2, model.expert_ffn_size = model.ffn_size;
  const auto has_whole = [](const Plan& plan) { return plan.stages[0].ep == 2; };
  Plan plan = with_savings();
  const hardware::Cluster cluster = cluster_of(plan);
  EXPECT_TRUE(any(neighbours(plan, model, cluster, {}), has_whole));
  EXPECT_FALSE(any(neighbours(plan, model, cluster, {.ep = {1}}), has_whole));
  for (Stage& stage : plan.stages) stage.ep = 2;
  std::vector<Plan> all = neighbours(plan, model, cluster, {});
  EXPECT_FALSE(std::ranges::all_of(all, has_whole));
  for (const Plan& other : all) EXPECT_NO_THROW(check(other, model, cluster)) << text(other);
  plan = equal_stages(model, 8, 2, {.dp = 4, .ep = 4});
  const auto sends = [](const Plan& other) { return other.stages[0].dispatch_tokens == 1; };
  EXPECT_TRUE(any(neighbours(plan, model, cluster_of(plan), {}), sends));
  EXPECT_FALSE(any(neighbours(plan, model, cluster_of(plan), {.dispatch_tokens = {0}}), sends));
  for (Stage& stage : plan.stages) stage.dispatch_tokens = 1;
  all = neighbours(plan, model, cluster_of(plan), {});
  EXPECT_TRUE(any(all, [&](const Plan& other) { return !sends(other); }));
  for (const Plan& other : all)
    EXPECT_NO_THROW(check(other, model, cluster_of(plan))) << text(other);
}

TEST(Neighbours, ShareLongSequences) {
  const model::Config model = samples::small_model(8);
  const auto with = [](int cp) {
    return [cp](const Plan& plan) { return plan.stages[0].cp == cp; };
  };
  Plan plan = equal_stages(model, 8, 2, {.dp = 2, .tp = 2});
  const hardware::Cluster cluster = cluster_of(plan);
  const deck::SearchKeys shares{.cp = {1, 2, 4}};
  EXPECT_FALSE(any(neighbours(plan, model, cluster, {}), with(2)));
  std::vector<Plan> all = neighbours(plan, model, cluster, shares);
  EXPECT_TRUE(any(all, [](const Plan& other) {  // of a half of the batch at once
    return other.stages[0].cp == 2 && other.stages[0].dp == 1 && other.microbatches == 8;
  }));
  EXPECT_TRUE(any(all, [](const Plan& other) {
    return other.stages[0].cp == 2 && other.stages[0].tp == 1 && other.stages[1].tp == 2;
  }));
  for (const Plan& other : all) EXPECT_NO_THROW(check(other, model, cluster)) << text(other);
  for (Stage& stage : plan.stages) stage.dp = 1, stage.cp = 2;
  plan.microbatches = 8;
  all = neighbours(plan, model, cluster, shares);
  EXPECT_TRUE(any(all, with(1)));
  EXPECT_TRUE(any(all, with(4)));
  const auto gathers = [](const Plan& other) { return other.stages[0].gather_keys == 1; };
  EXPECT_TRUE(any(all, gathers));
  for (Stage& stage : plan.stages) stage.gather_keys = 1;
  all = neighbours(plan, model, cluster, shares);
  EXPECT_TRUE(any(all, [&](const Plan& other) { return !gathers(other) && with(2)(other); }));
  for (const Plan& other : all) EXPECT_NO_THROW(check(other, model, cluster)) << text(other);
}

TEST(Neighbours, LackWhatTheSearchForbids) {
  Plan plan = with_savings();
  for (Stage& stage : plan.stages) {
    stage = {.first_layer = stage.first_layer,
             .layers = 4,
             .devices_per_node = 8,
             .microbatch = 2,
             .dp = 4,
             .tp = 2};
  }
  for (const Knob& knob : knobs) {
    if (used(knob, plan)) continue;  // as dp is
    deck::SearchKeys keys;
    keys.host_update = {0.0, 1.0};
    forbid(knob, keys);
    if (std::holds_alternative<std::monostate>(knob.search)) continue;
    EXPECT_FALSE(any(all_of(plan, keys), [&](const Plan& other) { return used(knob, other); }))
        << knob.name;
  }
}

TEST(Neighbours, KeepToShapesOfTheSearch) {
  const Plan plan = with_savings();
  deck::SearchKeys keys;
  keys.dp = {4};
  keys.microbatch = {2};
  for (const Plan& other : all_of(plan, keys))
    for (const Stage& stage : other.stages) {
      EXPECT_EQ(stage.dp, 4);
      EXPECT_EQ(stage.microbatch, 2);
    }
}

TEST(Neighbours, PartsFollowTheirShare) {
  Plan plan = with_savings();
  for (Stage& stage : plan.stages) stage.host_update_ratio = 0.5;
  deck::SearchKeys keys;
  keys.host_update = {0.0, 0.5, 1.0};
  EXPECT_TRUE(any(all_of(plan, keys), [](const Plan& other) {
    return other.stages[0].optim_offload_ratio == 1.0 && other.stages[0].host_update_ratio == 1.0;
  }));
  EXPECT_TRUE(any(all_of(plan, keys), [](const Plan& other) {
    return other.stages[0].optim_offload_ratio == 0.5 && other.stages[0].host_update_ratio == 0.25;
  }));
}

TEST(Neighbours, VirtualStagesCutTheLayersOfAStage) {
  Plan plan = with_savings();
  for (Stage& stage : plan.stages) stage.ckpt_layers = 4, stage.stored_layers = 0;
  const std::vector<Plan> all = all_of(plan, {});
  const auto two = std::ranges::find_if(
      all, [](const Plan& other) { return other.order.chunks == 2 && other.order.run_ahead == 1; });
  ASSERT_NE(two, all.end());
  ASSERT_EQ(two->num_stages(), 4);
  for (const Stage& stage : two->stages) {
    EXPECT_EQ(stage.layers, 2);
    EXPECT_EQ(stage.ckpt_layers, 2);
  }
  const std::vector<Plan> back = all_of(*two, {});
  EXPECT_NE(std::ranges::find(back, plan), back.end());
}

TEST(Neighbours, OneMicrobatchIsLeftOfTwo) {
  Plan plan = with_savings();
  plan.global_batch = 16;
  plan.microbatches = 2;
  EXPECT_TRUE(any(all_of(plan, {}), [](const Plan& other) {
    return other.microbatches == 1 && other.stages[0].microbatch == 4;
  }));
}

// Many stages have neighbours in proportion.
TEST(Neighbours, GrowWithTheNumberOfStages) {
  const auto count = [](int stages) {
    const model::Config model = samples::small_model(4 * stages);
    const Plan plan = equal_stages(
        model, stages, stages,
        {.devices_per_node = 1, .microbatch = 1, .dp = 1, .tp = 1, .stored_layers = 4});
    return neighbours(plan, model, cluster_of(plan), {}).size();
  };
  EXPECT_LE(count(64), 8 * count(16));
}

}  // namespace
}  // namespace brume::plan
