#include "plan/plan.hpp"
#include "plan/padding.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/files.hpp"
#include "deck/deck.hpp"
#include "own_folder.hpp"
#include "plan/order.hpp"
#include "plan/phases.hpp"
#include "plan/shapes.hpp"
#include "refusal.hpp"

namespace brume::plan {
namespace {

const model::Config small{.num_layers = 5,
                          .hidden_size = 64,
                          .num_heads = 4,
                          .ffn_size = 256,
                          .seq_len = 32,
                          .vocab_size = 100};
const hardware::Cluster two_nodes = hardware::NodeGroup{.nodes = 2, .devices_per_node = 4};

/// Two stages of 3 and 2 layers, each on one node of 4: dp 2, tp 2.
Plan sample() {
  const Stage stage{.first_layer = 0,
                    .layers = 3,
                    .nodes = 1,
                    .devices_per_node = 4,
                    .microbatch = 2,
                    .dp = 2,
                    .tp = 2,
                    .zero_level = 1,
                    .ckpt_layers = 2,
                    .optim_offload_ratio = 0.1 + 0.2,
                    .act_offload_ratio = 1.0 / 3.0};
  Plan plan{.version = 1, .global_batch = 16, .microbatches = 4, .stages = {stage, stage}};
  plan.stages[1].first_layer = 3;
  plan.stages[1].layers = 2;
  return plan;
}

/// The message with which a plan is refused; empty if it is not.
std::string refusal(const Plan& plan, const model::Config& model,
                    const hardware::Cluster& cluster) {
  try {
    check(plan, model, cluster);
  } catch (const Error& error) {
    EXPECT_EQ(error.failure(), Failure::input);
    return error.what();
  }
  return "";
}
std::string refusal(const std::function<void(Plan&)>& spoil) {
  Plan plan = sample();
  spoil(plan);
  return refusal(plan, small, two_nodes);
}

TEST(Plan, TextComesBackExactly) {
  const Plan back = parse(text(sample()), "plan.toml");
  EXPECT_TRUE(back == sample());
  EXPECT_EQ(back.stages[0].optim_offload_ratio, 0.1 + 0.2);
}

// A file with two plans names each; with one plan it is that plan's.
TEST(Plan, PhasesHaveOneFile) {
  const test::OwnFolder folder;
  const auto back = [&](const std::string& written) {
    write_file(folder / "plan.toml", written);
    return load_phases(folder / "plan.toml");
  };
  PhasePlans plans{.answers = sample()};
  EXPECT_FALSE(back(text(plans)).prompts);
  EXPECT_TRUE(back(text(plans)).answers == sample());
  plans.prompts = sample();
  plans.prompts->stages[1].tp = 1;
  EXPECT_TRUE(back(text(plans)).answers == sample());
  EXPECT_TRUE(back(text(plans)).prompts == plans.prompts);
  EXPECT_THROW(load(folder / "plan.toml"), Error);  // a training has one plan
  EXPECT_THROW(back("[prompts]\nglobal_batch = 1\n"), Error);
}

// Plans that use no disk say nothing of it.
TEST(Plan, SharesOnDiskAreWrittenWhereThereAreAny) {
  EXPECT_EQ(text(sample()).find("disk"), std::string::npos);
  EXPECT_EQ(table(sample()).find("disk"), std::string::npos);
  Plan plan = sample();
  plan.stages[1].optim_disk_ratio = 0.1;
  plan.stages[1].act_disk_ratio = 1.0 / 3.0;
  EXPECT_EQ(text(plan).find("disk"), text(plan).rfind("optim_disk_ratio") + 6);
  EXPECT_TRUE(parse(text(plan), "plan.toml") == plan);
  EXPECT_NE(table(plan).find("0.1/0.333333"), std::string::npos) << table(plan);
}

TEST(Plan, UpdatesOnTheHostAreWrittenWhereThereAreAny) {
  EXPECT_EQ(text(sample()).find("host_update"), std::string::npos);
  EXPECT_EQ(table(sample()).find("host update"), std::string::npos);
  Plan plan = sample();
  plan.stages[1].host_update_ratio = 0.25;
  EXPECT_NE(text(plan).find("host_update_ratio"), std::string::npos);
  EXPECT_TRUE(parse(text(plan), "plan.toml") == plan);
  EXPECT_NE(table(plan).find("host update"), std::string::npos) << table(plan);
  EXPECT_FALSE(uses_disk(plan.stages[1]));
}

TEST(Plan, EqualityLooksAtEveryKnob) {
  for (const auto& change : std::vector<std::function<void(Plan&)>>{
           [](Plan& p) { p.microbatches = 5; }, [](Plan& p) { p.stages[1].ckpt_layers = 0; },
           [](Plan& p) { p.stages[0].act_offload_ratio = 0; },
           [](Plan& p) { p.stages[1].optim_disk_ratio = 0.1; },
           [](Plan& p) { p.stages[1].act_disk_ratio = 0.1; },
           [](Plan& p) { p.stages[1].host_update_ratio = 0.1; },
           [](Plan& p) { p.stages.pop_back(); }}) {
    Plan other = sample();
    change(other);
    EXPECT_FALSE(other == sample());
  }
}

TEST(Plan, EqualStagesMayBeOnSeveralNodes) {
  model::Config model = small;
  model.num_layers = 4;
  const Plan plan = equal_stages(model, 4, 1, {.nodes = 2, .microbatch = 1, .dp = 4, .tp = 2});
  EXPECT_EQ(plan.stages[0].nodes, 2);
  EXPECT_EQ(plan.stages[0].devices_per_node, 4);
  check(plan, model, two_nodes);
}

TEST(Plan, UnknownVersionIsRefused) {
  Plan plan = sample();
  plan.version = 2;
  EXPECT_THROW(parse(text(plan), "plan.toml"), Error);
}

TEST(Plan, UnknownKeyIsRefusedByName) {
  try {
    parse(text(sample()) + "micro = 3\n", "plan.toml");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.failure(), Failure::input);
    EXPECT_NE(std::string(error.what()).find("plan.toml"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("micro"), std::string::npos) << error.what();
  }
}

TEST(PlanCheck, AcceptsAPlanThatRuns) {
  EXPECT_EQ(refusal([](Plan&) {}), "");
}

TEST(PlanCheck, AcceptsEveryKnob) {
  EXPECT_EQ(refusal([](Plan& p) {
              p.stages[0].zero_level = 3;
              p.stages[0].weight_offload_ratio = p.stages[1].grad_offload_ratio = 0.5;
            }),
            "");
}

// 2 x 2 sequences of a microbatch, then 1 x 4: what b dp G makes is the same.
TEST(PlanCheck, AcceptsStagesThatDiffer) {
  EXPECT_EQ(refusal([](Plan& p) {
              p.stages[1].microbatch = 1;
              p.stages[1].dp = 4;
              p.stages[1].tp = 1;
            }),
            "");
}

// The first stage may hold the embedding alone, the last one the head; another one has a layer.
TEST(PlanCheck, AcceptsStagesWithoutLayersAtTheEnds) {
  const auto of = [](const std::vector<int>& layers) {
    return refusal([&](Plan& p) {
      const Stage like = p.stages[0];
      p.stages.clear();
      int first = 0;
      for (const int count : layers) {
        Stage& stage = p.stages.emplace_back(like);
        stage.first_layer = std::exchange(first, first + count);
        stage.layers = count;
        stage.ckpt_layers = 0;
      }
    });
  };
  EXPECT_EQ(of({0, 5}), "");
  EXPECT_EQ(of({5, 0}), "");
  EXPECT_NE(of({0, 0, 5}).find("stage 1: layers must be from 1 to the 5 that are left, found 0"),
            std::string::npos)
      << of({0, 0, 5});
}

TEST(PlanCheck, NamesWhatIsWrong) {
  const std::vector<std::pair<std::function<void(Plan&)>, std::string>> cases{
      {[](Plan& p) { p.stages[1].layers = 1; }, "add up to 4, the model has 5"},
      {[](Plan& p) { p.stages[0].layers = -1; }, "stage 0: layers must be at least 0, found -1"},
      {[](Plan& p) { p.stages[1].first_layer = 2; }, "stage 1: first_layer must be 3"},
      {[](Plan& p) { p.stages[0].dp = 1; }, "stage 0: dp x tp = 1 x 2"},
      {[](Plan& p) { p.stages[1].microbatch = 1; },
       "stage 1: microbatch x dp x microbatches = 1 x 2 x 4 must be global_batch = 16"},
      {[](Plan& p) { p.microbatches = 3; }, "2 x 2 x 3 must be global_batch = 16"},
      {[](Plan& p) { p.stages[0].zero_level = 4; }, "stage 0: zero_level must be from 0 to 3"},
      {[](Plan& p) { p.stages[0].replicas = 0; }, "stage 0: replicas must be at least 1, found 0"},
      {[](Plan& p) { p.stages[0].replicas = 2; },
       "stage 0: replicas must divide dp = 2 into shards of at least 2 ranks, found 2"},
      {[](Plan& p) {
         p.stages[1].zero_level = 0;
         p.stages[1].replicas = 2;
       },
       "stage 1: replicas must be 1 where zero_level = 0 shards nothing"},
      {[](Plan& p) { p.stages[1].ckpt_layers = 3; },
       "stage 1: full_recompute_layers must be from 0 to its 2 layers"},
      {[](Plan& p) { p.stages[1].ckpt_layers = 1, p.stages[1].stored_layers = 2; },
       "stage 1: no_recompute_layers must be from 0 to the 1 of its layers that are not "
       "recomputed, "
       "found "
       "2"},
      {[](Plan& p) { p.stages[1].stored_layers = -1; },
       "stage 1: no_recompute_layers must be at least 0, found -1"},
      {[](Plan& p) { p.stages[0].weight_offload_ratio = -0.5; },
       "weight_offload_ratio must be from 0 to 1"},
      {[](Plan& p) { p.stages[0].grad_offload_ratio = 2.0; },
       "grad_offload_ratio must be from 0 to 1"},
      {[](Plan& p) { p.stages[0].optim_offload_ratio = 1.5; },
       "optim_offload_ratio must be from 0 to 1"},
      {[](Plan& p) { p.stages[0].act_offload_ratio = -0.1; },
       "act_offload_ratio must be from 0 to 1"},
      {[](Plan& p) { p.stages[1].optim_disk_ratio = 0.5; },
       "stage 1: optim_disk_ratio must be from 0 to optim_offload_ratio = 0.3"},
      {[](Plan& p) { p.stages[0].host_update_ratio = 0.4; },
       "stage 0: host_update_ratio must be from 0 to optim_offload_ratio = 0.3"},
      {[](Plan& p) { p.stages[1].optim_disk_ratio = p.stages[1].host_update_ratio = 0.2; },
       "stage 1: optim_disk_ratio + host_update_ratio must be at most optim_offload_ratio = 0.3"},
      {[](Plan& p) { p.stages[0].act_disk_ratio = -0.1; },
       "act_disk_ratio must be from 0 to act_offload_ratio = 0.3333333333333333, of which it is a "
       "part, found -0.1"},
      {[](Plan& p) { p.stages.pop_back(); }, "add up to 3"},
      {[](Plan& p) { p.stages.clear(); }, "at least one stage"},
  };
  for (const auto& [spoil, says] : cases) {
    const std::string message = refusal(spoil);
    EXPECT_NE(message.find(says), std::string::npos)
        << "'" << message << "' lacks '" << says << "'";
  }
}

/// Four stages on the devices of two.
Plan two_chunks() {
  Plan plan = sample();
  plan.order.chunks = 2;
  plan.stages.insert(plan.stages.end(), plan.stages.begin(), plan.stages.end());
  for (int i = 0; Stage & stage : plan.stages) {
    stage.first_layer = i++;
    stage.layers = stage.ckpt_layers = 1;
  }
  plan.stages.back().layers = 2;
  return plan;
}

TEST(Plan, ChunksAreWrittenWhereThereAreSeveral) {
  EXPECT_EQ(text(sample()).find("virtual_stages"), std::string::npos);
  EXPECT_NE(text(two_chunks()).find("virtual_stages"), std::string::npos);
  EXPECT_EQ(parse(text(two_chunks()), "plan.toml"), two_chunks());
  EXPECT_NE(table(two_chunks()).find("stages i and i + 2 lie on the same devices"),
            std::string::npos);
}

TEST(Plan, ChunksLieOnTheSameDevices) {
  const Plan plan = two_chunks();
  EXPECT_EQ(plan.devices(), 8);
  EXPECT_EQ(plan.pipeline_size(), 2);
  EXPECT_EQ(stage_index(plan, 6), 1);
  EXPECT_EQ(first_rank(plan, 3), 4);
  EXPECT_EQ(stages_beside(plan, 1), (std::vector{1, 3}));
  EXPECT_EQ(first_device(plan, 2), 0);
  EXPECT_EQ(block_range(plan, 0).first, 0);
  EXPECT_EQ(block_range(plan, 2).first, 3);
  EXPECT_EQ(block_range(plan, 3).last, 6);
  EXPECT_EQ(ranks_of_nodes(plan, two_nodes).at({0, 1}), (std::vector{4, 5, 6, 7}));
}

// Kernels of hosts have no such limits.
TEST(PlanCheck, NamesWhatKernelsOfDevicesDoNotTake) {
  hardware::Cluster devices = two_nodes;
  devices.groups[0].on_device = true;
  model::Config model = small;
  Plan plan = sample();
  const auto refused = [&] {
    EXPECT_NO_THROW(check(plan, model, two_nodes));
    return test::refusal([&] { check(plan, model, devices); });
  };
  EXPECT_NO_THROW(check(plan, model, devices));

  model.head_size = 256;
  EXPECT_NO_THROW(check(plan, model, devices));
  model.head_size = 257;
  EXPECT_NE(refused().find("found 257 features, expected at most 256"), std::string::npos);

  model = small;
  model.num_kv_heads = 2;
  model.seq_len = 1 << 22;
  model.frozen_parameters = {"embedding.token"};
  EXPECT_NO_THROW(check(plan, model, devices));
  model.seq_len += 2;
  EXPECT_NE(refused().find("found 2 query heads per key head x 4194306 queries"),
            std::string::npos);

  model = small;
  model.seq_len = 1 << 21;
  EXPECT_NO_THROW(check(plan, model, devices));
  model.seq_len += 2;
  EXPECT_NE(refused().find("stage 0: microbatch has too many tokens"), std::string::npos);
  model.frozen_parameters = {"embedding.token"};
  EXPECT_NO_THROW(check(plan, model, devices));
}

TEST(PlanCheck, ChunksHaveTheMeshOfTheirDevices) {
  check(two_chunks(), small, two_nodes);
  const auto refused = [](const std::function<void(Plan&)>& spoil) {
    Plan plan = two_chunks();
    spoil(plan);
    return test::refusal([&] { check(plan, small, two_nodes); });
  };
  EXPECT_EQ(refused([](Plan& plan) { plan.stages[3].zero_level = 0; }),
            "plan: stage 3: it lies on the devices of stage 1, so nodes, devices_per_node, "
            "microbatch, dp, cp, tp, ep, mlp_tiles, zero_level, replicas and group must be those "
            "of stage 1");
  EXPECT_EQ(refused([](Plan& plan) { plan.order.chunks = 3; }),
            "plan: virtual_stages = 3 must divide its 4 stages into at least 2 that have devices "
            "of their "
            "own");
  EXPECT_NE(refused([](Plan& plan) { plan.order.chunks = 4; }).find("at least 2"),
            std::string::npos);
  Plan plan = two_chunks();
  plan.order.chunks = 3;
  EXPECT_EQ(test::refusal([&] { parse(text(plan), "plan.toml"); }),
            "plan.toml: virtual_stages = 3 must divide the 4 stages of a plan");
}

TEST(Plan, SplitBackwardsAreWrittenWhereThereAreAny) {
  Plan plan = sample();
  EXPECT_EQ(text(plan).find("zero_bubble"), std::string::npos);
  plan.order.zero_bubble = 1;
  EXPECT_NE(text(plan).find("zero_bubble"), std::string::npos);
  EXPECT_EQ(parse(text(plan), "plan.toml"), plan);
  EXPECT_NE(table(plan).find("gradients of weights fill waits (ZB-H1)"), std::string::npos);
  EXPECT_EQ(order_text(plan), "zero_bubble = 1");
  plan.order.run_ahead = 2;
  EXPECT_NE(table(plan).find("gradients of weights fill waits (ZB-H2)"), std::string::npos);
}

TEST(PlanCheck, SplitBackwardsHaveAnOrderOfTheirOwn) {
  Plan split = sample();
  split.order.zero_bubble = split.order.run_ahead = 1;
  for (Stage& stage : split.stages) stage.zero_level = 1, stage.grad_offload_ratio = 0.0;
  check(split, small, two_nodes);
  split.order.run_ahead = 2;
  check(split, small, two_nodes);
  model::Config model = small;
  const auto refused = [&](const std::function<void(Plan&)>& spoil) {
    Plan plan = split;
    spoil(plan);
    return test::refusal([&] { check(plan, model, two_nodes); });
  };
  EXPECT_EQ(refused([](Plan& plan) { plan.order.zero_bubble = 2; }),
            "plan: zero_bubble must be from 0 to 1, found 2");
  Plan chunks = two_chunks();
  chunks.order.zero_bubble = chunks.order.run_ahead = 1;
  EXPECT_EQ(test::refusal([&] { check(chunks, small, two_nodes); }),
            "plan: zero_bubble = 1 has an order of its own: virtual_stages must be 1");
  EXPECT_EQ(refused([](Plan& plan) { plan.stages.pop_back(); }),
            "plan: zero_bubble = 1 is for pipelines: a plan of one stage never waits for another");
  const char* const gradients =
      "plan: stage 1: zero_bubble = 1 adds up gradients where they are kept, so zero_level must be "
      "0 or 1 and grad_offload_ratio 0, found ";
  EXPECT_EQ(refused([](Plan& plan) { plan.stages[1].zero_level = 2; }),
            std::string(gradients) + "2 and 0");
  EXPECT_EQ(refused([](Plan& plan) { plan.stages[1].grad_offload_ratio = 0.5; }),
            std::string(gradients) + "1 and 0.5");
  model.frozen_blocks = 1;
  check(split, model, two_nodes);
  const char* const frozen =
      "plan: zero_bubble = 1 is not for models whose first layers, or whose embedding alone on a "
      "stage, are frozen: these stages have no backward to split";
  const auto leave_embedding_alone = [](Plan& plan) {
    plan.stages[1].layers += plan.stages[0].layers;
    plan.stages[0].layers = plan.stages[1].first_layer = 0;
    for (Stage& stage : plan.stages) stage.ckpt_layers = stage.stored_layers = 0;
  };
  EXPECT_EQ(refused(leave_embedding_alone), frozen);
  model.frozen_blocks = 0;
  Plan lone = split;
  leave_embedding_alone(lone);
  check(lone, model, two_nodes);
  model.frozen_blocks = 2;
  EXPECT_EQ(refused([](Plan&) {}), frozen);
}

TEST(PlanCheck, TensorParallelGroupsMayTakeWholeNodes) {
  model::Config wide = small;
  wide.num_heads = 8;
  Plan plan{.global_batch = 4,
            .microbatches = 4,
            .stages = {{.layers = 5, .nodes = 2, .devices_per_node = 4, .dp = 1, .tp = 8}}};
  EXPECT_NO_THROW(check(plan, wide, two_nodes));
  wide.num_heads = 6, wide.ffn_size = 252, wide.seq_len = 36;
  plan.stages[0].tp = 6;  // of 2 x 3 devices
  plan.stages[0].devices_per_node = 3;
  EXPECT_NO_THROW(
      check(plan, wide, hardware::Cluster(hardware::NodeGroup{.nodes = 2, .devices_per_node = 3})));
  plan.stages[0].tp = 2;
  plan.stages[0].dp = 3;
  plan.global_batch = 12;
  const std::string message = test::refusal([&] {
    check(plan, wide, hardware::Cluster(hardware::NodeGroup{.nodes = 2, .devices_per_node = 3}));
  });
  EXPECT_NE(message.find("or be a multiple of it"), std::string::npos) << message;
}

// Three nodes of four devices: 6 devices a replica are one node and a half.
TEST(PlanCheck, ReplicasLieAlikeOnTheirNodes) {
  const hardware::Cluster three_nodes = hardware::NodeGroup{.nodes = 3, .devices_per_node = 4};
  Plan plan{
      .global_batch = 12,
      .microbatches = 1,
      .stages = {{.layers = 5, .nodes = 3, .devices_per_node = 4, .dp = 12, .zero_level = 2}}};
  for (const int replicas : {1, 3, 6}) {
    plan.stages[0].replicas = replicas;
    EXPECT_NO_THROW(check(plan, small, three_nodes)) << replicas;
  }
  plan.stages[0].replicas = 2;
  EXPECT_THROW(check(plan, small, three_nodes), Error);
}

TEST(Plan, ATableHasReplicasWhereThereAreAny) {
  Plan plan = sample();
  EXPECT_EQ(table(plan).find("replicas"), std::string::npos);
  plan.stages[1].replicas = 2;
  EXPECT_NE(table(plan).find("ZeRO  replicas  recomputed"), std::string::npos) << table(plan);
}

TEST(Plan, StoredLayersAreWrittenWhereThereAreAny) {
  Plan plan = sample();
  plan.stages[0].ckpt_layers = 0;
  EXPECT_EQ(text(plan).find("no_recompute_layers"), std::string::npos) << text(plan);
  EXPECT_EQ(table(plan).find("stored"), std::string::npos) << table(plan);
  plan.stages[0].stored_layers = 2;
  EXPECT_EQ(parse(text(plan), "plan.toml"), plan) << text(plan);
  EXPECT_NE(table(plan).find("recomputed  stored"), std::string::npos) << table(plan);
}

TEST(Plan, ExpertParallelismIsWrittenWhereThereIsAny) {
  Plan plan = sample();
  EXPECT_EQ(text(plan).find("ep "), std::string::npos) << text(plan);
  EXPECT_EQ(table(plan).find("ep"), std::string::npos) << table(plan);
  plan.stages[0].ep = 2;
  EXPECT_EQ(parse(text(plan), "plan.toml"), plan) << text(plan);
  EXPECT_NE(table(plan).find("tp  ep  ZeRO"), std::string::npos) << table(plan);
}

// A rank has whole experts, or a part of each. The sample's stages have dp = 2 and tp = 2.
TEST(PlanCheck, ExpertsAreDividedOverAllRanksOrCut) {
  model::Config model = small;
  model.family = &model::family("llama");
  model.num_experts = 6, model.experts_per_token = 2, model.expert_ffn_size = 255;
  const auto refused = [&](int ep) {
    Plan plan = sample();
    for (Stage& stage : plan.stages) stage.ep = ep;
    return refusal(plan, model, two_nodes);
  };
  EXPECT_EQ(refused(2), "");
  EXPECT_EQ(refused(1), "plan: stage 0: tp = 2 must divide expert_ffn_size = 255");
  const std::string of_dp = "plan: stage 0: ep must be 1, or tp = 2 times a divisor of dp = 2, ";
  EXPECT_EQ(refused(3), of_dp + "found 3");
  EXPECT_EQ(refused(8), of_dp + "found 8");
  EXPECT_EQ(refused(4), "plan: stage 0: ep = 4 must divide num_experts = 6");
  model.num_experts = 8;
  EXPECT_EQ(refused(4), "");
  model.num_experts = 5;
  EXPECT_EQ(refused(2), "plan: stage 0: ep = 2 must divide num_experts = 5");
  model.num_experts = 0;
  EXPECT_EQ(refused(2), "plan: stage 0: ep must be 1 for a model without experts, found 2");
}

TEST(PlanCheck, TokensAreSentToRanksOverData) {
  model::Config model = small;
  model.family = &model::family("llama");
  model.num_experts = 8, model.experts_per_token = 2, model.expert_ffn_size = 256;
  Plan plan = sample();
  const auto refused = [&](int ep) {
    for (Stage& stage : plan.stages) stage.ep = ep, stage.dispatch_tokens = 1;
    return refusal(plan, model, two_nodes);
  };
  EXPECT_EQ(refused(2),
            "plan: stage 0: dispatch_tokens must be 0 unless ep > tp, found ep = 2 and tp = 2");
  EXPECT_EQ(refused(4), "");
  EXPECT_EQ(parse(text(plan), "plan.toml"), plan) << text(plan);
  EXPECT_NE(table(plan).find("ep  dispatch"), std::string::npos) << table(plan);
  model.shared_expert_ffn_size = 8;
  EXPECT_EQ(refused(4), "");
}

// All ranks that sum the output have a part of a shared expert; all heads are on one rank that
// norms them together.
TEST(PlanCheck, SharedExpertsAndJointNormsAreCutOrRefused) {
  model::Config model = small;
  model.family = &model::family("llama");
  model.num_experts = 8, model.experts_per_token = 2, model.expert_ffn_size = 256;
  const auto refused = [&](int ep) {
    Plan plan = sample();
    for (Stage& stage : plan.stages) stage.ep = ep;
    return refusal(plan, model, two_nodes);
  };
  model.shared_expert_ffn_size = 6;
  EXPECT_EQ(refused(1), "");
  EXPECT_EQ(refused(2), "");
  EXPECT_EQ(refused(4), "plan: stage 0: ep = 4 must divide shared_expert_ffn_size = 6");
  model.shared_expert_ffn_size = 5;
  EXPECT_EQ(refused(1), "plan: stage 0: tp = 2 must divide shared_expert_ffn_size = 5");
  model.shared_expert_ffn_size = 8;
  EXPECT_EQ(refused(4), "");
  model.optimizer = &model::muon;
  EXPECT_EQ(refused(2), "");
  EXPECT_EQ(refused(4),
            "plan: stage 0: ep = 4 must be at most tp = 2 for optimizer \"muon\" and a shared "
            "expert, whose matrices tp ranks bring together");
  model.qk_norm = model.qk_norm_joint = true;
  EXPECT_EQ(refused(2),
            "plan: stage 0: tp must be 1 for qk_norm_joint, whose norms take all heads, found 2");
}

TEST(PlanCheck, TilesAreOfADenseMlpOfOneRank) {
  model::Config model = small;
  const auto fault = [&](const model::Split& split) { return tile_fault(model, split); };
  EXPECT_EQ(fault({.mlp_tiles = 3}), "");
  EXPECT_EQ(fault({.tp = 2}), "");
  EXPECT_EQ(fault({.tp = 2, .mlp_tiles = 3}), "mlp_tiles must be 1 unless tp is 1, found 3");
  const int tokens = 2 * model.seq_len;
  EXPECT_EQ(fault({.microbatch = 2, .mlp_tiles = tokens}), "");
  EXPECT_EQ(fault({.microbatch = 2, .mlp_tiles = tokens + 1}),
            fmt::format("mlp_tiles must be at most the {} tokens that a rank computes, found {}",
                        tokens, tokens + 1));
  model.num_experts = 4;
  EXPECT_EQ(fault({.mlp_tiles = 2}), "mlp_tiles must be 1 for a model with experts, found 2");
  model.num_experts = 0, model.family = &model::family("falcon");
  EXPECT_EQ(fault({.mlp_tiles = 2}),
            "mlp_tiles must be 1 for a model whose attention and MLP read the same input, found 2");
}

// 6 ranks that divide experts lie on one node and half of the next.
TEST(PlanCheck, RanksThatDivideExpertsLieAlikeOnNodes) {
  model::Config model = small;
  model.family = &model::family("llama");
  model.num_experts = 12, model.experts_per_token = 2, model.expert_ffn_size = 256;
  const auto refused = [&](int ep, int replicas) {
    const Stage stage{.nodes = 3,
                      .devices_per_node = 4,
                      .dp = 12,
                      .ep = ep,
                      .zero_level = 1,
                      .replicas = replicas};
    Plan plan = equal_stages(model, 24, 1, stage);
    plan.stages[0].nodes = 3, plan.stages[0].devices_per_node = 4;
    return refusal(plan, model, hardware::NodeGroup{.nodes = 3, .devices_per_node = 4});
  };
  EXPECT_EQ(refused(4, 1), "");
  EXPECT_EQ(refused(12, 1), "");
  EXPECT_EQ(refused(6, 1),
            "plan: stage 0: ep = 6 ranks must divide the 4 on a node, or be whole nodes");
  EXPECT_EQ(refused(4, 3),
            "plan: stage 0: replicas must divide dp x tp / ep = 3 into shards of at least 2 ranks, "
            "found 3");
}

TEST(Plan, ContextParallelismIsWrittenWhereThereIsAny) {
  Plan plan = sample();
  EXPECT_EQ(text(plan).find("cp "), std::string::npos) << text(plan);
  EXPECT_EQ(table(plan).find("cp"), std::string::npos) << table(plan);
  plan.stages[0].cp = 2;
  EXPECT_EQ(parse(text(plan), "plan.toml"), plan) << text(plan);
  EXPECT_NE(table(plan).find("dp  cp  tp"), std::string::npos) << table(plan);
  plan.stages[0].gather_keys = 1;
  EXPECT_EQ(parse(text(plan), "plan.toml"), plan) << text(plan);
  EXPECT_NE(table(plan).find("dp  cp  keys  tp"), std::string::npos) << table(plan);
}

// Ranks (d, c, t) in order: t first, then c.
TEST(Plan, RanksThatShareASequenceAreNeighbours) {
  Plan plan = equal_stages(small, 2, 2, {.dp = 2, .cp = 3, .tp = 2});
  EXPECT_EQ(plan.devices(), 24);
  EXPECT_EQ(members(plan, 15, Axis::cp), (std::vector{13, 15, 17}));
  EXPECT_EQ(members(plan, 15, Axis::tp), (std::vector{14, 15}));
  EXPECT_EQ(members(plan, 15, model::data_axes), (std::vector{13, 15, 17, 19, 21, 23}));
  EXPECT_EQ(place(plan, 15).cp_rank, 1);
  EXPECT_EQ(place(plan, 23).cp_rank, 2);
  for (Stage& stage : plan.stages) stage.zero_level = 1, stage.replicas = 3;
  EXPECT_EQ(members(plan, 15, Axis::shard), (std::vector{13, 15}));
  EXPECT_EQ(members(plan, 15, Axis::replica), (std::vector{15, 19, 23}));
}

// Whatever the length, ranks of a padded sequence can share it, and one token less of padding is
// too little for them.
TEST(Padding, IsTheLeastThatAllStagesCut) {
  model::Config model = small;
  model.num_layers = 4, model.num_heads = 8;
  const auto fault = [&](const Plan& plan, int padding) {
    model.padding = padding;
    return refusal(plan, model,
                   hardware::NodeGroup{.nodes = 1, .devices_per_node = plan.devices()});
  };
  int padded_plans = 0;
  for (int length = 16; length <= 33; ++length)
    for (const int gather_keys : {0, 1})
      for (const auto& [cp, tp] : {std::pair(1, 2), {2, 1}, {2, 2}, {4, 1}, {4, 2}, {8, 1}}) {
        if (gather_keys == 1 && cp == 1) continue;
        model.seq_len = length;
        const Plan plan = equal_stages(
            model, 1, 2, {.microbatch = 1, .cp = cp, .gather_keys = gather_keys, .tp = tp});
        const int padding = plan::padding(plan, length);
        EXPECT_EQ(fault(plan, padding), "") << length << ' ' << cp << ' ' << tp;
        for (int less = 0; less < padding; ++less) EXPECT_NE(fault(plan, less), "");
        padded_plans += padding > 0;
      }
  EXPECT_GT(padded_plans, 100);
  Plan hostile = equal_stages(model, 1, 4, {.microbatch = 1, .cp = 999'983, .tp = 999'979});
  hostile.stages[0].cp = (1 << 24) - 3, hostile.stages[0].tp = 1;
  EXPECT_EQ(plan::padding(hostile, 16), 0);
}

TEST(Padding, OfASearchIsForTheDegreesThatDoNotCutSequences) {
  model::Config model = small;
  const hardware::Cluster cluster = hardware::NodeGroup{.nodes = 1, .devices_per_node = 24};
  const auto found = [&](int length, std::vector<int> cp) {
    model.seq_len = length;
    deck::SearchKeys search;
    search.cp = std::move(cp);
    return padded_contexts(model, cluster, search);
  };
  EXPECT_FALSE(found(1000, {})) << "short sequences are not shared";
  EXPECT_FALSE(found(1008, {1, 2, 4, 8}));
  const auto some = found(1000, {1, 2, 4, 8, 24});
  ASSERT_TRUE(some);
  EXPECT_EQ(some->model.padded_len(), 1008);
  EXPECT_EQ(some->search.cp, (std::vector{8, 24}));
  EXPECT_EQ(found(16, {3})->model.padded_len(), 18) << "the shortest, where all are long";
  const auto longer = found(100001, {});
  ASSERT_TRUE(longer);
  EXPECT_EQ(longer->model.padded_len(), 100032);
  EXPECT_EQ(longer->search.cp, (std::vector{2, 3, 4, 6, 8, 12, 24}));
}

TEST(PlanCheck, SaysWhyRanksCannotShareASequence) {
  model::Config model = small;
  const auto refused = [&](int cp, int microbatch = 1, int tp = 1) {
    Plan plan = equal_stages(model, microbatch, 1, {.microbatch = microbatch, .cp = cp, .tp = tp});
    const hardware::NodeGroup node{.nodes = 1, .devices_per_node = plan.devices()};
    return refusal(plan, model, node);
  };
  model.num_heads = 8, model.seq_len = 16;
  EXPECT_EQ(refused(4), "");
  EXPECT_EQ(refused(2, 2),
            "plan: stage 0: microbatch must be 1 where cp = 2 ranks share a sequence, found 2");
  EXPECT_EQ(refused(3), "plan: stage 0: cp = 3 must divide the 16 tokens of a sequence");
  EXPECT_EQ(refused(16),
            "plan: stage 0: cp = 16 must divide the 8 heads of a tensor-parallel rank");
  model.num_layers = 4;
  const auto gathers = [&](std::vector<int> degrees) {
    Plan plan = equal_stages(model, 1, int(degrees.size()), {.gather_keys = 1});
    for (std::size_t i = 0; i < degrees.size(); ++i) {
      Stage& stage = plan.stages[i];
      stage.cp = stage.devices_per_node = degrees[i];
      stage.gather_keys = stage.cp > 1;
    }
    const hardware::NodeGroup node{.nodes = 1, .devices_per_node = plan.devices()};
    return refusal(plan, model, node);
  };
  EXPECT_EQ(gathers({8, 8}), "") << "as many ranks as there are heads, and pairs of chunks";
  EXPECT_EQ(gathers({3}),
            "plan: stage 0: 2 cp = 6 must divide the 16 tokens of a sequence for gather_keys = 1");
  model.padding = 2;
  EXPECT_EQ(gathers({3}), "");
  model.padding = 0;
  EXPECT_EQ(gathers({2, 4}).substr(0, 50), "plan: all stages must have the same cp and gather_");
  EXPECT_EQ(gathers({2, 1}).substr(0, 50), "plan: all stages must have the same cp and gather_");
  model.seq_len = 18;
  EXPECT_EQ(refused(2, 1, 2),
            "plan: stage 0: tp = 2 must divide microbatch x seq_len / cp = 1 x 18 / 2, the tokens "
            "that its ranks share between segments");
}

// 2 x 15 tokens have halves, 1 x 15 have none.
TEST(PlanCheck, TensorParallelRanksShareTokensEvenly) {
  model::Config odd = small;
  odd.seq_len = 15;
  Plan plan = sample();
  EXPECT_NO_THROW(check(plan, odd, two_nodes));
  plan.global_batch /= 2;
  for (Stage& stage : plan.stages) stage.microbatch /= 2;
  try {
    check(plan, odd, two_nodes);
    FAIL();
  } catch (const Error& error) {
    const std::string says = "stage 0: tp = 2 must divide microbatch x seq_len = 1 x 15";
    EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
  }
}

TEST(PlanCheck, TensorParallelGroupsDivideTheModel) {
  const std::string message = refusal([](Plan& p) {
    for (Stage& s : p.stages) s.dp = 1, s.tp = 8, s.nodes = 1, s.devices_per_node = 8;
  });
  EXPECT_NE(message.find("straddle"), std::string::npos) << message;
  Plan plan = sample();
  model::Config odd = small;
  odd.num_heads = 3;
  EXPECT_THROW(check(plan, odd, two_nodes), Error);
  odd = small;
  odd.ffn_size = 255;
  EXPECT_THROW(check(plan, odd, two_nodes), Error);
}

// One stage of 3 devices on nodes of 4 puts the next one astride.
TEST(PlanCheck, MeshesStayWithinNodes) {
  const hardware::Cluster nodes_of_3 = hardware::NodeGroup{.nodes = 2, .devices_per_node = 3};
  Plan plan = sample();
  plan.stages.push_back(plan.stages[1]);
  for (Stage& s : plan.stages) s.dp = 2, s.tp = 1, s.devices_per_node = 2;
  plan.stages[0].layers = 2, plan.stages[0].ckpt_layers = 0;
  plan.stages[1].first_layer = 2;
  plan.stages[2].first_layer = 4, plan.stages[2].layers = 1, plan.stages[2].ckpt_layers = 0;
  EXPECT_THROW(check(plan, small, nodes_of_3), Error);
  EXPECT_NO_THROW(check(plan, small, hardware::NodeGroup{.nodes = 1, .devices_per_node = 6}));
}

TEST(PlanCheck, UsesEveryDevice) {
  EXPECT_THROW(check(sample(), small, hardware::NodeGroup{.nodes = 3, .devices_per_node = 4}),
               Error);
}

TEST(Plan, PlaceAndRankAreInverse) {
  for (int rank = 0; rank < sample().devices(); ++rank) {
    const Place where = place(sample(), rank);
    EXPECT_EQ(first_rank(sample(), where.stage) + where.index(model::all_axes), rank);
  }
  const Place where = place(sample(), 6);  // stage 1 owns 4..7; tp ranks are neighbours
  EXPECT_EQ(where.stage, 1);
  EXPECT_EQ(where.index(model::data_axes), 1);
  EXPECT_EQ(where.at[Axis::tp], 0);
  EXPECT_THROW(place(sample(), 8), Error);
}

TEST(Plan, StagesCoverAllBlocksOnce) {
  EXPECT_EQ(block_range(sample(), 0).first, 0);
  EXPECT_EQ(block_range(sample(), 0).last, 3);
  EXPECT_EQ(block_range(sample(), 1).first, 4);
  EXPECT_EQ(block_range(sample(), 1).last, 6);  // 5 layers: the head is block 6
}

TEST(Plan, TableHasALinePerStage) {
  const std::string lines = table(sample());
  EXPECT_NE(lines.find("0-2"), std::string::npos) << lines;
  EXPECT_NE(lines.find("3-4"), std::string::npos) << lines;
}

// --- groups ---

const hardware::Cluster two_kinds =
    std::vector<hardware::NodeGroup>{{.name = "fast", .nodes = 1, .devices_per_node = 4},
                                     {.name = "slow", .nodes = 2, .devices_per_node = 2}};

/// Stages of 1, 3 and 1 layers on "slow", "fast" and "slow".
Plan on_groups() {
  Plan plan{.global_batch = 16, .microbatches = 4, .stages = {}};
  plan.stages.push_back({.layers = 1, .devices_per_node = 2, .microbatch = 2, .dp = 2});
  plan.stages.push_back({.layers = 3, .devices_per_node = 4, .microbatch = 1, .dp = 4});
  plan.stages.push_back(plan.stages[0]);
  plan.stages[1].first_layer = 1;
  plan.stages[2].first_layer = 4;
  plan.stages[0].group = plan.stages[2].group = "slow";
  plan.stages[1].group = "fast";
  return plan;
}

TEST(Plan, StagesNameTheirGroups) {
  const Plan plan = on_groups();
  EXPECT_NO_THROW(check(plan, small, two_kinds));
  EXPECT_TRUE(parse(text(plan), "plan.toml") == plan);
  EXPECT_NE(table(plan).find("slow"), std::string::npos);
  EXPECT_EQ(text(sample()).find("group "), std::string::npos);
  Plan other = plan;
  other.stages[1].group = "slow";
  EXPECT_FALSE(other == plan);
}

// The pipeline's order is slow, fast, slow; the job's is all of fast, then both nodes of slow.
TEST(Plan, JobRanksAreNumberedGroupByGroup) {
  const Plan plan = on_groups();
  std::vector<int> ranks;
  for (int rank = 0; rank < 8; ++rank) ranks.push_back(job_rank(plan, two_kinds, rank));
  EXPECT_EQ(ranks, (std::vector<int>{4, 5, 0, 1, 2, 3, 6, 7}));
  const auto nodes = ranks_of_nodes(plan, two_kinds);
  EXPECT_EQ(nodes.at({0, 0}), (std::vector<int>{2, 3, 4, 5}));
  EXPECT_EQ(nodes.at({1, 0}), (std::vector<int>{0, 1}));
  EXPECT_EQ(nodes.at({1, 1}), (std::vector<int>{6, 7}));
}

/// Three nodes of two devices; two stages on the first node, then one on each other.
const hardware::Cluster three_nodes = hardware::NodeGroup{.nodes = 3, .devices_per_node = 2};
Plan ordered() {
  Plan plan{.global_batch = 4, .microbatches = 2, .stages = {}};
  for (int i = 0; i < 4; ++i) {
    const int devices = i < 2 ? 1 : 2;
    plan.stages.push_back({.first_layer = i,
                           .layers = i < 3 ? 1 : 2,
                           .devices_per_node = devices,
                           .microbatch = 2 / devices,
                           .dp = devices});
  }
  plan.node_order = {2, 0, 1};
  return plan;
}

TEST(Plan, NodesHaveAnOrder) {
  EXPECT_EQ(text(sample()).find("node_order"), std::string::npos);
  const Plan plan = ordered();
  EXPECT_NO_THROW(check(plan, small, three_nodes));
  EXPECT_TRUE(parse(text(plan), "plan.toml") == plan);
  EXPECT_NE(table(plan).find("; on nodes 2, 0, 1\n"), std::string::npos);
  std::vector<int> ranks;
  for (int rank = 0; rank < 6; ++rank) ranks.push_back(job_rank(plan, three_nodes, rank));
  EXPECT_EQ(ranks, (std::vector<int>{4, 5, 0, 1, 2, 3}));
  const auto nodes = ranks_of_nodes(plan, three_nodes);
  EXPECT_EQ(nodes.at({0, 0}), (std::vector<int>{2, 3}));
  EXPECT_EQ(nodes.at({0, 2}), (std::vector<int>{0, 1}));
}

TEST(PlanCheck, AnOrderOfNodesHasEachOnce) {
  const auto refused = [](const std::vector<int>& order) {
    Plan plan = ordered();
    plan.node_order = order;
    return test::refusal([&] { check(plan, small, three_nodes); });
  };
  const std::string said =
      "plan: node_order must be the cluster's 3 nodes, counted from 0, in any order, found ";
  EXPECT_EQ(refused({0, 1}), said + "[0, 1]");
  EXPECT_EQ(refused({0, 1, 1}), said + "[0, 1, 1]");
  EXPECT_EQ(refused({0, 1, 3}), said + "[0, 1, 3]");
  EXPECT_EQ(refused({0, 1, 2, 3}), said + "[0, 1, 2, 3]");
  EXPECT_EQ(refused({-1, 0, 1}), said + "[-1, 0, 1]");
  std::string wrong = text(ordered());
  wrong.replace(wrong.find("2, 0, 1"), 7, "2, 0,-1");
  EXPECT_THROW(parse(wrong, "plan.toml"), Error);
  Plan grouped = on_groups();
  grouped.node_order = {1, 0, 2};
  EXPECT_EQ(test::refusal([&] { check(grouped, small, two_kinds); }),
            "plan: node_order is for clusters of one group, this one has 2");
}

TEST(Plan, GroupsHoldWholeNodesOfStages) {
  const auto refused = [](const std::function<void(Plan&)>& spoil) -> std::string {
    Plan plan = on_groups();
    spoil(plan);
    try {
      check(plan, small, two_kinds);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(
      refused([](Plan& p) { p.stages[0].group = "none"; }).find("stage 0: group: the cluster"),
      std::string::npos);
  EXPECT_NE(refused([](Plan& p) { p.stages[0].group.clear(); }).find("no group ''"),
            std::string::npos);
  EXPECT_NE(refused([](Plan& p) { p.stages[1].group = "slow"; }).find("straddle nodes of 2"),
            std::string::npos);
  // Half a node of "slow".
  EXPECT_NE(refused([](Plan& p) {
              p.stages[2].devices_per_node = p.stages[2].dp = 1;
              p.stages[2].microbatch = 4;
            }).find("whole nodes"),
            std::string::npos);
  // A group may be left out.
  EXPECT_EQ(refused([](Plan& p) {
              p.stages.pop_back();
              p.stages[1].layers = 4;
            }),
            "");
}

/// "f0 f1 b0": the passes of 1F1B on the first rank of a pipeline.
std::string passes(const PipelineShape& shape) {
  std::string text;
  RankPasses({}, shape, 0).each([&](const Pass& pass) {
    text += (text.empty() ? "" : " ") + std::string(pass.forward ? "f" : "b") +
            std::to_string(pass.microbatch);
  });
  return text;
}

TEST(PlanOrder, OfUsualPipelinesIsOneForwardAndOneBackwardInTurn) {
  EXPECT_EQ(passes({1, 1}), "f0 b0");
  EXPECT_EQ(passes({1, 3}), "f0 b0 f1 b1 f2 b2");
  EXPECT_EQ(passes({2, 3}), "f0 f1 b0 f2 b1 b2");
  EXPECT_EQ(passes({3, 4}), "f0 f1 f2 b0 f3 b1 b2 b3");
  EXPECT_EQ(passes({4, 4}), "f0 f1 f2 f3 b0 b1 b2 b3");
}

/// Expects each pass of a rank once, after the passes that it needs, and the passes in flight that
/// the order states.
void expect_every_pass_once(const Order& order, const PipelineShape& shape, int rank) {
  const RankPasses passes(order, shape, rank);
  std::set<std::tuple<int, int, int>> done;  // kind, chunk, microbatch
  int in_flight = 0, most = 0;
  passes.each([&](const Pass& pass) {
    const int kind = pass.forward ? 0 : pass.weights ? 2 : 1;
    EXPECT_TRUE(done.emplace(kind, pass.chunk, pass.microbatch).second);
    EXPECT_TRUE(kind == 0 || done.contains({kind - 1, pass.chunk, pass.microbatch}));
    EXPECT_TRUE(0 <= pass.chunk && pass.chunk < order.chunks);
    EXPECT_TRUE(0 <= pass.microbatch && pass.microbatch < shape.microbatches);
    in_flight += kind == 0 ? 1 : kind == 1 ? -1 : 0;
    most = std::max(most, in_flight);
  });
  const int kinds = order.splits_backward() ? 3 : 2;
  EXPECT_EQ(int(done.size()), kinds * order.chunks * shape.microbatches);
  EXPECT_EQ(most, order.in_flight(shape, rank) + 1);
}

TEST(PlanOrder, HasEveryPassOnce) {
  for (const Order& order :
       {Order{}, Order{.run_ahead = 2}, Order{.chunks = 2}, Order{.run_ahead = 2, .chunks = 3},
        Order{.zero_bubble = 1}, Order{.run_ahead = 2, .zero_bubble = 1}})
    for (const int ranks : {1, 2, 3, 5})
      for (const int microbatches : {1, 2, 5, 12})
        for (int rank = 0; rank < ranks; ++rank) {
          SCOPED_TRACE(fmt::format("{} {} {} of {} ranks, {} microbatches", order.run_ahead,
                                   order.chunks, order.zero_bubble, ranks, microbatches));
          expect_every_pass_once(order, {ranks, microbatches}, rank);
        }
}

/// The orders, as "run_ahead chunks zero_bubble".
std::vector<std::string> texts(const std::vector<Order>& orders) {
  std::vector<std::string> found;
  for (const Order& order : orders)
    found.push_back(fmt::format("{} {} {}", order.run_ahead, order.chunks, order.zero_bubble));
  return found;
}

TEST(PlanOrder, IsSearchedAmongThoseThatMakeADifference) {
  using Texts = std::vector<std::string>;
  deck::SearchKeys search;
  EXPECT_EQ(texts(orders_of_1f1b({4, 8}, search)), (Texts{"1 1 0", "2 1 0"}));
  EXPECT_EQ(texts(orders_of_1f1b({4, 2}, search)), (Texts{"1 1 0"}));
  EXPECT_EQ(texts(orders_of_1f1b({1, 8}, search)), (Texts{"1 1 0"}));
  EXPECT_EQ(texts(other_orders({4, 8}, 8, search)), (Texts{"1 2 0", "2 2 0", "1 1 1", "2 1 1"}));
  search.run_ahead = {2};
  search.chunks = {1};
  EXPECT_EQ(texts(orders_of_1f1b({4, 8}, search)), (Texts{"2 1 0"}));
  EXPECT_EQ(texts(other_orders({4, 8}, 8, search)), (Texts{"2 1 1"}));
  search.zero_levels = {2, 3};  // shards gradients, which are then whole for a part only
  EXPECT_TRUE(other_orders({4, 8}, 8, search).empty());
  search.chunks = {};
  search.whole_rounds = true;
  EXPECT_EQ(texts(other_orders({4, 8}, 8, search)), (Texts{"2 2 0"}));
  EXPECT_TRUE(other_orders({4, 9}, 8, search).empty());
}

}  // namespace
}  // namespace brume::plan
