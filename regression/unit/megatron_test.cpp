#include "interop/megatron.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.hpp"

namespace brume::interop {
namespace {

const char* const text = R"([model]
family       = "llama"
num_layers   = 8
hidden_size  = 512
num_heads    = 8
num_kv_heads = 4
ffn_size     = 1536
seq_len      = 1024
vocab_size   = 32000
tied_head    = false
[training]
steps        = 100
global_batch = 64
precision    = "bf16"
[data]
train = "t"
[cluster]
devices_per_node = 8
memory_gib       = 40
host_memory_gib  = 100
)";

struct Megatron : testing::Test {
  deck::Deck deck = deck::parse(text, "a.toml");
  model::Config model = model::config(deck.model, "bf16");
  plan::Plan plan{.global_batch = 64,
                  .microbatches = 16,
                  .stages = {{.layers = 8,
                              .devices_per_node = 8,
                              .microbatch = 1,
                              .dp = 4,
                              .tp = 2,
                              .zero_level = 1}}};

  /// The value of an argument; "-" where it is not there.
  std::string value(const std::string& name) const {
    const auto arguments = megatron_arguments(deck, model, plan);
    const auto found = std::ranges::find(arguments, name, &MegatronArgument::name);
    return found == arguments.end() ? "-" : found->value;
  }
  std::string refusal() const {
    try {
      megatron_arguments(deck, model, plan);
    } catch (const Error& error) {
      EXPECT_EQ(error.failure(), Failure::input);
      return error.what();
    }
    return "";
  }
  /// Two stages of 5 and 3 layers.
  void cut() {
    plan.stages.push_back(plan.stages[0]);
    plan.stages[0].layers = 5;
    plan.stages[1].first_layer = 5;
    plan.stages[1].layers = 3;
  }
};

TEST_F(Megatron, SaysTheModel) {
  EXPECT_EQ(value("--num-layers"), "8");
  EXPECT_EQ(value("--num-query-groups"), "4");
  EXPECT_EQ(value("--ffn-hidden-size"), "1536");
  EXPECT_EQ(value("--normalization"), "RMSNorm");
  EXPECT_EQ(value("--swiglu"), "");
  EXPECT_EQ(value("--untie-embeddings-and-output-weights"), "");
  EXPECT_EQ(value("--disable-bias-linear"), "");
  EXPECT_EQ(value("--add-qkv-bias"), "-");
  EXPECT_EQ(value("--position-embedding-type"), "rope");
  EXPECT_EQ(value("--train-iters"), "100");
  EXPECT_EQ(value("--bf16"), "");
  model.family = model::Family::falcon;
  EXPECT_NE(refusal().find("falcon"), std::string::npos);
}

TEST_F(Megatron, SaysThePlan) {
  EXPECT_EQ(value("--tensor-model-parallel-size"), "2");
  EXPECT_EQ(value("--sequence-parallel"), "");
  EXPECT_EQ(value("--pipeline-model-parallel-size"), "-");
  EXPECT_EQ(value("--micro-batch-size"), "1");
  EXPECT_EQ(value("--global-batch-size"), "64");
  EXPECT_EQ(value("--use-distributed-optimizer"), "");
  EXPECT_EQ(value("--use-megatron-fsdp"), "-");
  EXPECT_EQ(value("--recompute-granularity"), "-");
  plan.stages[0].zero_level = 3;
  EXPECT_EQ(value("--data-parallel-sharding-strategy"), "optim_grads_params");
  plan.stages[0].zero_level = 2;
  EXPECT_EQ(value("--data-parallel-sharding-strategy"), "optim_grads");
  plan.stages[0].zero_level = 0;
  EXPECT_EQ(value("--use-distributed-optimizer"), "-");
}

TEST_F(Megatron, StagesMayDifferInLayers) {
  cut();
  EXPECT_EQ(value("--pipeline-model-parallel-size"), "2");
  EXPECT_EQ(value("--pipeline-model-parallel-layout"), "Et*5|t*3L");
  const std::string shell = megatron_text(megatron_arguments(deck, model, plan));
  EXPECT_NE(shell.find("--pipeline-model-parallel-layout 'Et*5|t*3L' \\\n"), std::string::npos);
  EXPECT_TRUE(shell.ends_with("\n") && !shell.ends_with("\\\n"));
  plan.stages[0].layers = plan.stages[1].layers = 4;
  EXPECT_EQ(value("--pipeline-model-parallel-layout"), "-");
}

TEST_F(Megatron, RecomputesAllLayersOrAsManyInEachStage) {
  cut();
  plan.stages[0].ckpt_layers = 5;
  plan.stages[1].ckpt_layers = 3;
  EXPECT_EQ(value("--recompute-method"), "uniform");
  plan.stages[0].ckpt_layers = 3;
  plan.stages[1].ckpt_layers = 2;
  EXPECT_NE(refusal().find("ckpt_layers"), std::string::npos);
  plan.stages[1].ckpt_layers = 3;
  EXPECT_EQ(value("--recompute-method"), "block");
  EXPECT_EQ(value("--recompute-num-layers"), "3");
}

TEST_F(Megatron, RefusesWhatItHasNothingLike) {
  const auto refused = [&](auto&& change, const char* word) {
    const plan::Plan before = plan;
    change();
    EXPECT_NE(refusal().find(word), std::string::npos) << word << ": " << refusal();
    plan = before;
  };
  const auto stage = [&]() -> plan::Stage& { return plan.stages[0]; };
  refused([&] { stage().weight_offload_ratio = 0.5; }, "weight_offload_ratio");
  refused([&] { stage().grad_offload_ratio = 0.5; }, "grad_offload_ratio");
  refused([&] { stage().act_offload_ratio = 0.5; }, "act_offload_ratio");
  refused([&] { cut(), plan.run_ahead = 2; }, "run_ahead");
  refused([&] { cut(), plan.stages[1].tp = 1; }, "tp");
  refused([&] { cut(), plan.stages[1].microbatch = 2; }, "microbatch");
  refused([&] { cut(), plan.stages[0].zero_level = plan.stages[1].zero_level = 3; },
          "zero_level 3 with pipeline stages");
  EXPECT_EQ(refusal(), "");
  stage().optim_offload_ratio = 0.5;
  EXPECT_EQ(value("--optimizer-offload-fraction"), "0.5");
}

}  // namespace
}  // namespace brume::interop
