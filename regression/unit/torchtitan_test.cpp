#include "interop/torchtitan.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "llama_deck.hpp"

namespace brume::interop {
namespace {

struct TorchTitan : testing::Test {
  deck::Deck deck = deck::parse(test::llama_deck, "a.toml");
  model::Config model = model::config(deck.model, "bf16");
  plan::Plan plan{.global_batch = 64,
                  .microbatches = 16,
                  .stages = {{.layers = 32,
                              .devices_per_node = 8,
                              .microbatch = 1,
                              .dp = 4,
                              .tp = 2,
                              .zero_level = 3}}};

  bool says(const std::string& line) const {
    return torchtitan_module(deck, model, plan).find(line) != std::string::npos;
  }
  std::string refusal() const {
    try {
      torchtitan_module(deck, model, plan);
    } catch (const Error& error) {
      EXPECT_EQ(error.failure(), Failure::input);
      return error.what();
    }
    return "";
  }
};

TEST_F(TorchTitan, SaysThePlan) {
  EXPECT_TRUE(says("config = llama3_8b()\n"));
  EXPECT_TRUE(says(".data_parallel_shard_degree = 4\n"));
  EXPECT_TRUE(says(".fsdp_reshard_after_forward = \"always\"\n"));
  EXPECT_TRUE(says(".tensor_parallel_degree = 2\n"));
  EXPECT_TRUE(says(".num_tokens_per_microbatch_per_dp_rank = 8192\n"));
  EXPECT_TRUE(says(".num_tokens_per_train_step = 524288\n"));
  EXPECT_TRUE(says("config.activation_checkpoint = None\n"));
  EXPECT_FALSE(says("num_pp_microbatches"));
  EXPECT_TRUE(says(".disable_cuda_graphs = False\n"));
  plan.stages[0].replicas = 2;
  EXPECT_TRUE(says(".data_parallel_replicate_degree = 2\n"));
  EXPECT_TRUE(says(".data_parallel_shard_degree = 2\n"));
  plan.stages[0].zero_level = 2;
  EXPECT_TRUE(says(".fsdp_reshard_after_forward = \"never\"\n"));
  plan.stages[0].zero_level = 0;
  EXPECT_TRUE(says(".data_parallel_replicate_degree = 4\n"));
  EXPECT_TRUE(says(".data_parallel_shard_degree = 1\n"));
  plan.stages[0].ckpt_layers = 32;
  EXPECT_TRUE(says("config.activation_checkpoint = FullAC.Config()\n"));
  EXPECT_TRUE(says("activation_checkpoint import FullAC\n"));
}

// Ranks of cp gather keys, and state is sharded over them too.
TEST_F(TorchTitan, RanksShareSequences) {
  plan::Stage& stage = plan.stages[0];
  EXPECT_FALSE(says("context_parallel"));
  stage.cp = 2, stage.dp = 2, stage.gather_keys = 1;
  EXPECT_TRUE(says(".context_parallel_degree = 2\n"));
  EXPECT_TRUE(says(".context_parallel_load_balancer = \"ptrr\"\n"));
  EXPECT_TRUE(says(".data_parallel_shard_degree = 2\n"));
  EXPECT_TRUE(says(".num_tokens_per_microbatch_per_dp_rank = 8192\n"));
  stage.replicas = 2;
  EXPECT_TRUE(says(".data_parallel_replicate_degree = 2\n"));
  EXPECT_TRUE(says(".data_parallel_shard_degree = 1\n"));
  stage.replicas = 4;
  EXPECT_NE(refusal().find("replicas"), std::string::npos);
  stage.replicas = 1, stage.zero_level = 0;
  EXPECT_NE(refusal().find("search.zero_levels"), std::string::npos);
  stage.zero_level = 2, stage.gather_keys = 0;
  EXPECT_NE(refusal().find("search.gather_keys"), std::string::npos);
  stage.gather_keys = 1, model.seq_len = 8192 - 128;
  EXPECT_NE(refusal().find("blocks of 128 tokens"), std::string::npos);
}

// Qwen3: sizes, norms of queries and keys, tied heads and names as in torchtitan/models/qwen3/
// (config_registry.py has no function of its own for 4B and 8B, which its model_registry knows).
TEST_F(TorchTitan, KnowsQwen3) {
  model.qk_norm = true;
  model.vocab_size = 151936;
  model.head_size = 128;
  model.num_kv_heads = 8;
  model.norm_eps = 1e-6;
  model.rope_theta = 1e6;
  const auto size = [&](int layers, int hidden, int heads, int ffn, bool tied) {
    model.num_layers = plan.stages[0].layers = layers;
    model.hidden_size = hidden;
    model.num_heads = heads;
    model.ffn_size = ffn;
    model.tied_head = tied;
  };
  size(28, 1024, 16, 3072, true);
  EXPECT_TRUE(says("from torchtitan.models.qwen3.config_registry import qwen3_0_6b\n"));
  EXPECT_TRUE(says("config = qwen3_0_6b()\n    parallelism"));
  size(28, 2048, 16, 6144, true);
  EXPECT_TRUE(says("config = qwen3_1_7b()\n    parallelism"));
  size(36, 2560, 32, 9728, true);
  EXPECT_TRUE(says("config.model_spec = model_registry(\"4B\")\n"));
  size(36, 4096, 32, 12288, false);
  EXPECT_TRUE(says("from torchtitan.models.qwen3 import model_registry\n"));
  EXPECT_TRUE(says("config = qwen3_14b()\n    config.model_spec = model_registry(\"8B\")\n"));
  size(40, 5120, 40, 17408, false);
  EXPECT_TRUE(says("config = qwen3_14b()\n    parallelism"));
  size(64, 5120, 64, 25600, false);
  EXPECT_TRUE(says("config = qwen3_32b()\n"));
  model.qk_norm = false;
  EXPECT_NE(refusal().find("these sizes"), std::string::npos);
  model.qk_norm = true;

  size(28, 2048, 16, 6144, true);
  plan.stages.push_back(plan.stages[0]);
  plan.stages[0].layers = plan.stages[1].layers = plan.stages[1].first_layer = 14;
  EXPECT_NE(refusal().find("search.stages = [1]"), std::string::npos);
}

// Ranks of sharded state divide experts, and send tokens to each other.
TEST_F(TorchTitan, DividesExpertsOfQwen3) {
  model.qk_norm = true;
  model.vocab_size = 151936;
  model.num_layers = plan.stages[0].layers = 48;
  model.hidden_size = 2048, model.head_size = 128;
  model.num_heads = 32, model.num_kv_heads = 4;
  model.norm_eps = 1e-6, model.rope_theta = 1e6;
  model.num_experts = 128, model.experts_per_token = 8, model.expert_ffn_size = 768;
  EXPECT_TRUE(says("config = qwen3_30b_a3b()\n    parallelism"));
  EXPECT_FALSE(says("expert_parallel_degree"));
  EXPECT_TRUE(says("        layer.moe.load_balance_coeff = None\n"));
  plan::Stage& stage = plan.stages[0];
  stage.ep = 4;
  EXPECT_NE(refusal().find("search.dispatch_tokens = [1]"), std::string::npos);
  stage.dispatch_tokens = 1;
  EXPECT_TRUE(says(".expert_parallel_degree = 4\n"));
  EXPECT_TRUE(says(".data_parallel_shard_degree = 4\n"));
  stage.replicas = 2;
  EXPECT_TRUE(says(".data_parallel_shard_degree = 2\n"));
  stage.zero_level = 1;
  EXPECT_NE(refusal().find("search.zero_levels = [2, 3]"), std::string::npos);
  stage.zero_level = 3;
  model.padding = 64;
  EXPECT_NE(refusal().find("padded sequences"), std::string::npos);
  model.padding = 0, model.balance_loss = 0.01;
  EXPECT_NE(refusal().find("balance_loss"), std::string::npos);
  model.balance_loss = 0.0, model.normalize_topk = false;
  EXPECT_NE(refusal().find("routers"), std::string::npos);
  model.normalize_topk = true, model.num_experts = 64;
  EXPECT_NE(refusal().find("these sizes"), std::string::npos);
  model.num_experts = 128, model.num_layers = stage.layers = 94;
  model.hidden_size = 4096, model.num_heads = 64, model.expert_ffn_size = 1536;
  EXPECT_TRUE(says("    config.model_spec = model_registry(\"235B-A22B\")\n"));
  EXPECT_TRUE(says("        rope.theta = 1000000\n"));
}

// As its models have them: rotary angles are set where they are others, norms are not.
TEST_F(TorchTitan, ItsModelsAreThoseOfThePlan) {
  model.rope_theta = 500000.0;
  EXPECT_TRUE(says("        rope = layer.attention.rope\n"));
  EXPECT_TRUE(says("        rope.theta = 500000\n        rope.scaling = \"none\"\n"));
  EXPECT_FALSE(says("scaling_factor"));
  model.rope_scaling = {.kind = model::RopeScaling::Kind::llama3, .factor = 8.0};
  EXPECT_FALSE(says("rope"));
  model.rope_scaling.factor = 32.0;
  EXPECT_TRUE(says("        rope.scaling = \"llama\"\n        rope.scaling_factor = 32\n"));
  for (const auto kind : {model::RopeScaling::Kind::linear, model::RopeScaling::Kind::yarn}) {
    model.rope_scaling.kind = kind;
    EXPECT_NE(refusal().find("linear or yarn scaling of rotary angles"), std::string::npos);
  }
  model.rope_scaling = {};
  model.rotary_size = 64;
  EXPECT_NE(refusal().find("a part of a head"), std::string::npos);
  model.rotary_size = 0;
  model.norm_eps = 1e-3;
  EXPECT_NE(refusal().find("norm_eps = 0.001, it is 1e-05 there"), std::string::npos);
}

TEST_F(TorchTitan, StagesNameTheirModules) {
  plan.stages.push_back(plan.stages[0]);
  plan.stages[0].layers = 17;
  plan.stages[1].first_layer = 17;
  plan.stages[1].layers = 15;
  EXPECT_TRUE(says("[\"tok_embeddings\"] + [f\"layers.{i}\" for i in range(0, 17)],\n"));
  EXPECT_TRUE(says("[f\"layers.{i}\" for i in range(17, 32)] + [\"norm\", \"lm_head\"],\n"));
  EXPECT_TRUE(says(".num_pp_microbatches = 16\n"));
  EXPECT_TRUE(says(".pipeline_parallel_degree = 2\n"));
  EXPECT_TRUE(says(".disable_cuda_graphs = True\n"));  // its parser refuses them with stages
  plan.order.run_ahead = 2;
  EXPECT_NE(refusal().find("run_ahead"), std::string::npos);
}

TEST_F(TorchTitan, RefusesWhatItHasNothingLike) {
  const auto refused = [&](auto&& change, const char* word) {
    const plan::Plan before = plan;
    const model::Config model_before = model;
    const deck::Deck deck_before = deck;
    change();
    EXPECT_NE(refusal().find(word), std::string::npos) << word << ": " << refusal();
    plan = before, model = model_before, deck = deck_before;
  };
  plan::Stage& stage = plan.stages[0];
  refused([&] { stage.zero_level = 1; }, "search.zero_levels");
  refused([&] { plan.order.zero_bubble = 1; }, "zero_bubble = 1");
  refused([&] { stage.ckpt_layers = 5; }, "search.full_recompute");
  refused([&] { stage.act_offload_ratio = 0.5; }, "search.act_offload");
  refused([&] { stage.optim_offload_ratio = 1.0; }, "search.weight_offload");
  refused([&] { stage.weight_offload_ratio = 0.5; }, "search.weight_offload");
  refused([&] { model.num_layers = 16; }, "these sizes");
  refused([&] { model.num_experts = 8; }, "30B-A3B");
  refused([&] { model.precision = model::Precision::fp16; }, "fp16");
  refused([&] { deck.training.optimizer.schedule = "wsd"; }, "wsd");
  refused([&] { deck.training.optimizer.name = "sgd"; }, "\"sgd\"");
  refused([&] { deck.training.adapter.rank = 8; }, "training.adapter");
  refused([&] { deck.training.preference.beta = 0.1; }, "training.preference");
  stage.weight_offload_ratio = stage.grad_offload_ratio = stage.optim_offload_ratio = 1.0;
  EXPECT_TRUE(says(".enable_cpu_offload = True\n"));
  EXPECT_TRUE(says(".disable_cuda_graphs = True\n"));
  refused([&] { stage.zero_level = 0; }, "not sharded");
}

}  // namespace
}  // namespace brume::interop
