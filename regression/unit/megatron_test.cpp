#include "interop/megatron.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <tuple>

#include "base/error.hpp"
#include "base/files.hpp"
#include "llama_deck.hpp"
#include "refusal.hpp"

namespace brume::interop {
namespace {

/// On one node, with few enough layers to be cut by hand.
deck::Deck small_deck() {
  deck::Deck deck = deck::parse(test::llama_deck, "a.toml");
  deck.model.num_layers = 8;
  deck.cluster.nodes = 1;
  return deck;
}

struct Megatron : testing::Test {
  deck::Deck deck = small_deck();
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
  bool script_has(const std::string& text) const {
    return megatron_script(deck, model, plan).find(text) != std::string::npos;
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
  EXPECT_EQ(value("--num-query-groups"), "8");
  EXPECT_EQ(value("--ffn-hidden-size"), "14336");
  EXPECT_EQ(value("--normalization"), "RMSNorm");
  EXPECT_EQ(value("--swiglu"), "");
  EXPECT_EQ(value("--untie-embeddings-and-output-weights"), "");
  EXPECT_EQ(value("--disable-bias-linear"), "");
  EXPECT_EQ(value("--add-qkv-bias"), "-");
  EXPECT_EQ(value("--position-embedding-type"), "rope");
  EXPECT_EQ(value("--train-iters"), "100");
  EXPECT_EQ(value("--bf16"), "");
  model.rope_theta = 2804339835.0;  // more than 31 bits have
  EXPECT_EQ(value("--rotary-base"), "2804339835");
  model.rope_theta = 10000.5;
  EXPECT_NE(refusal().find("--rotary-base is a whole number"), std::string::npos);
  model.family = &model::family("falcon");
  EXPECT_NE(refusal().find("falcon"), std::string::npos);
}

TEST_F(Megatron, SaysTheExperts) {
  EXPECT_EQ(value("--num-experts"), "-");
  EXPECT_EQ(value("--expert-tensor-parallel-size"), "-");
  model.num_experts = 8;
  model.experts_per_token = 2;
  model.expert_ffn_size = 3584;
  EXPECT_EQ(value("--num-experts"), "8");
  EXPECT_EQ(value("--moe-router-topk"), "2");
  EXPECT_EQ(value("--moe-ffn-hidden-size"), "3584");
  EXPECT_EQ(value("--moe-router-load-balancing-type"), "none");
  EXPECT_EQ(value("--moe-aux-loss-coeff"), "-");
  EXPECT_EQ(value("--moe-z-loss-coeff"), "-");
  EXPECT_EQ(value("--moe-router-pre-softmax"), "-");
  EXPECT_EQ(value("--moe-router-dtype"), "fp32");
  EXPECT_EQ(value("--moe-token-dispatcher-type"), "alltoall");
  EXPECT_EQ(value("--moe-grouped-gemm"), "");
  EXPECT_EQ(value("--expert-model-parallel-size"), "1");
  EXPECT_EQ(value("--expert-tensor-parallel-size"), "2");
  for (plan::Stage& stage : plan.stages) stage.ep = 2;
  EXPECT_EQ(value("--expert-model-parallel-size"), "2");
  EXPECT_EQ(value("--expert-tensor-parallel-size"), "1");
  for (plan::Stage& stage : plan.stages) stage.ep = 4;
  EXPECT_EQ(value("--expert-model-parallel-size"), "4");
  EXPECT_EQ(value("--expert-tensor-parallel-size"), "1");
  EXPECT_EQ(value("--moe-token-dispatcher-type"), "allgather");
  for (plan::Stage& stage : plan.stages) stage.dispatch_tokens = 1;
  EXPECT_EQ(value("--moe-token-dispatcher-type"), "alltoall");
  for (plan::Stage& stage : plan.stages) stage.dispatch_tokens = 0;
  for (plan::Stage& stage : plan.stages) stage.ep = 1;
  model.balance_loss = 0.01;
  model.z_loss = 0.001;
  EXPECT_EQ(value("--moe-router-load-balancing-type"), "seq_aux_loss");
  EXPECT_EQ(value("--moe-aux-loss-coeff"), "0.01");
  EXPECT_EQ(value("--moe-z-loss-coeff"), "0.001");
  model.experts_per_token = 1;  // its softmax over one logit would have no gradient
  EXPECT_NE(refusal().find("normalize_topk"), std::string::npos);
  model.normalize_topk = false;
  EXPECT_EQ(value("--moe-router-pre-softmax"), "");
  EXPECT_EQ(value("--moe-router-topk-scaling-factor"), "-");
  model.routed_scale = 2.5;
  EXPECT_EQ(value("--moe-router-topk-scaling-factor"), "2.5");
}

TEST_F(Megatron, SaysTheRouter) {
  model.num_experts = 8;
  model.experts_per_token = 4;
  model.expert_ffn_size = 3584;
  EXPECT_EQ(value("--moe-shared-expert-intermediate-size"), "-");
  model.shared_expert_ffn_size = 7168;
  EXPECT_EQ(value("--moe-shared-expert-intermediate-size"), "7168");
  EXPECT_EQ(value("--moe-shared-expert-gate"), "-");
  model.shared_expert_gate = true;
  EXPECT_EQ(value("--moe-shared-expert-gate"), "");
  EXPECT_EQ(value("--moe-shared-expert-overlap"), "-");
  for (plan::Stage& stage : plan.stages) stage.ep = 4, stage.dispatch_tokens = 1;
  EXPECT_EQ(value("--moe-shared-expert-overlap"), "");
  for (plan::Stage& stage : plan.stages) stage.ep = 1, stage.dispatch_tokens = 0;
  model.expert_groups = 4;
  model.groups_per_token = 2;  // it adds up two logits of a group, which sigmoids do here
  EXPECT_NE(refusal().find("2 of 4 groups with experts_per_token = 4"), std::string::npos);
  model.router = model::RouterKind::sigmoid;
  EXPECT_EQ(value("--moe-router-score-function"), "sigmoid");
  EXPECT_EQ(value("--moe-router-num-groups"), "4");
  EXPECT_EQ(value("--moe-router-group-topk"), "2");
  EXPECT_EQ(value("--moe-router-enable-expert-bias"), "");
  EXPECT_EQ(value("--moe-router-bias-update-rate"), "0");
  model.balance_rate = 0.001;
  EXPECT_EQ(value("--moe-router-bias-update-rate"), "0.001");
  model.normalize_topk = false;
  EXPECT_NE(refusal().find("normalize_topk = false of sigmoids"), std::string::npos);
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
  EXPECT_EQ(value("--ckpt-format"), "fsdp_dtensor");  // its parser refuses others beside FSDP
  plan.stages[0].zero_level = 2;
  EXPECT_EQ(value("--data-parallel-sharding-strategy"), "optim_grads");
  plan.stages[0].zero_level = 0;
  EXPECT_EQ(value("--use-distributed-optimizer"), "-");
}

TEST_F(Megatron, StagesMayDifferInLayers) {
  cut();
  EXPECT_EQ(value("--pipeline-model-parallel-size"), "2");
  EXPECT_EQ(value("--pipeline-model-parallel-layout"), "Et*5|t*3L");
  EXPECT_TRUE(script_has("--pipeline-model-parallel-layout 'Et*5|t*3L' \\\n"));
  EXPECT_TRUE(script_has("\n  \"$@\"\n"));
  plan.stages[0].layers = plan.stages[1].layers = 4;
  EXPECT_EQ(value("--pipeline-model-parallel-layout"), "-");
}

// Its parser's assertions: tensor parallelism wants 1, FSDP anything else.
TEST_F(Megatron, ItsScriptSetsHowManyQueuesADeviceHas) {
  const char* const one = "\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\n";
  EXPECT_TRUE(script_has(one));
  plan.stages[0].zero_level = 3;
  EXPECT_FALSE(script_has(one));
  EXPECT_TRUE(script_has("\nunset CUDA_DEVICE_MAX_CONNECTIONS\n"));
  plan.stages[0].zero_level = 1;
  plan.stages[0].dp = 8;
  plan.stages[0].tp = 1;
  EXPECT_FALSE(script_has("CUDA_DEVICE_MAX_CONNECTIONS"));
  plan.stages[0].dp = plan.stages[0].cp = 2;
  plan.stages[0].tp = 2;
  EXPECT_TRUE(script_has(one));
  plan.stages[0].cp = 4;
  plan.stages[0].tp = 1;
  EXPECT_TRUE(script_has(one));
}

// 8 key heads, and sequences of 8192 tokens.
TEST_F(Megatron, RanksThatShareASequenceHaveWholeKeyHeadsThere) {
  plan.stages[0].tp = plan.stages[0].dp = 1;
  plan.stages[0].cp = 8;
  EXPECT_EQ(value("--context-parallel-size"), "8");
  EXPECT_EQ(value("--cp-comm-type"), "a2a");
  model.num_kv_heads = 4;
  EXPECT_NE(refusal().find("cp = 8 that does not divide the 4 key heads"), std::string::npos);
  model.num_kv_heads = 8;
  model.seq_len = 8200;
  EXPECT_NE(refusal().find("cp = 8, twice of which does not divide seq_len = 8200"),
            std::string::npos);
  plan.stages[0].gather_keys = 1;
  model.num_kv_heads = 4;
  EXPECT_EQ(value("--cp-comm-type"), "all_gather");
  plan.stages[0].gather_keys = 0;
  plan.stages[0].cp = 1;
  EXPECT_EQ(value("--context-parallel-size"), "-");
}

TEST_F(Megatron, ItsScriptAsksWhichNodeItIsOn) {
  EXPECT_TRUE(script_has("torchrun --nnodes 1 --nproc-per-node 8 \\\n  pretrain_gpt.py"));
  EXPECT_FALSE(script_has("NODE_RANK"));
  plan.stages[0].nodes = 2;
  plan.stages[0].dp = 8;
  EXPECT_TRUE(script_has("torchrun --nnodes 2 --nproc-per-node 8 \\\n"));
  EXPECT_TRUE(script_has("--node-rank \"${NODE_RANK:?"));
}

TEST_F(Megatron, StagesOnTheSameDevicesAreVirtual) {
  plan.stages.assign(4, plan.stages[0]);
  for (int i = 0; plan::Stage & stage : plan.stages) {
    stage.first_layer = 2 * i++;
    stage.layers = 2;
  }
  plan.order.chunks = plan.order.run_ahead = 2;
  EXPECT_EQ(value("--pipeline-model-parallel-size"), "2");
  EXPECT_EQ(value("--num-virtual-stages-per-pipeline-rank"), "2");
  EXPECT_EQ(value("--pipeline-model-parallel-layout"), "-");
  plan.stages[1].layers = 3, plan.stages[2].layers = 1;
  EXPECT_EQ(value("--pipeline-model-parallel-layout"), "Et*2|t*3|t*1|t*2L");
  plan.stages[0].layers = plan.stages[3].layers = 0, plan.stages[2].layers = 5;
  EXPECT_EQ(value("--pipeline-model-parallel-layout"), "E|t*3|t*5|L");
  plan.order.run_ahead = 1;
  EXPECT_NE(refusal().find("run_ahead"), std::string::npos);
  plan.order.run_ahead = 2;
  plan.microbatches = 15;
  EXPECT_NE(refusal().find("15 microbatches"), std::string::npos);
}

TEST_F(Megatron, RecomputesAllLayersOrAsManyInEachStage) {
  cut();
  plan.stages[0].ckpt_layers = 5;
  plan.stages[1].ckpt_layers = 3;
  EXPECT_EQ(value("--recompute-method"), "uniform");
  plan.stages[0].ckpt_layers = 3;
  plan.stages[1].ckpt_layers = 2;
  EXPECT_NE(refusal().find("full_recompute_layers"), std::string::npos);
  plan.stages[1].ckpt_layers = 3;
  EXPECT_EQ(value("--recompute-method"), "block");
  EXPECT_EQ(value("--recompute-num-layers"), "3");
}

TEST_F(Megatron, RefusesWhatItHasNothingLike) {
  const auto refused = [&](auto&& change, const char* word) {
    const plan::Plan before = plan;
    const deck::Deck deck_before = deck;
    change();
    EXPECT_NE(refusal().find(word), std::string::npos) << word << ": " << refusal();
    plan = before, deck = deck_before;
  };
  const auto stage = [&]() -> plan::Stage& { return plan.stages[0]; };
  refused([&] { deck.training.optimizer.name = "sgd"; }, "\"sgd\"");
  refused([&] { deck.training.adapter.rank = 8; }, "training.adapter");
  refused([&] { deck.training.preference.beta = 0.1; }, "training.preference");
  refused([&] { stage().weight_offload_ratio = 0.5; }, "weight_offload_ratio");
  refused([&] { stage().grad_offload_ratio = 0.5; }, "grad_offload_ratio");
  refused([&] { stage().act_offload_ratio = 0.5; }, "act_offload_ratio");
  refused([&] { cut(), plan.order.run_ahead = 2; }, "run_ahead");
  refused([&] { cut(), plan.order.zero_bubble = 1; }, "zero_bubble = 1");
  refused([&] { cut(), plan.stages[1].tp = 1; }, "tp");
  refused([&] { cut(), plan.stages[1].microbatch = 2; }, "microbatch");
  refused([&] { cut(), plan.stages[0].zero_level = plan.stages[1].zero_level = 3; },
          "zero_level 3 with pipeline stages");
  EXPECT_EQ(refusal(), "");
  stage().optim_offload_ratio = 0.5;
  EXPECT_EQ(value("--optimizer-offload-fraction"), "0.5");
}

/// A file with arguments, in a folder of its own.
struct MegatronArguments : Megatron {
  std::string path = testing::TempDir() + "brume-megatron-" + std::to_string(::getpid()) + ".sh";
  std::vector<std::string> sets = {"cluster.devices_per_node=8", "cluster.memory_gib=40",
                                   "cluster.host_memory_gib=100"};
  ~MegatronArguments() override { std::filesystem::remove(path); }

  MegatronJob read(const std::string& script) const {
    write_file(path, script);
    return read_megatron(path, sets);
  }
  std::string refusal_of(const std::string& script) const {
    try {
      read(script);
    } catch (const Error& error) {
      EXPECT_EQ(error.failure(), Failure::input);
      return error.what();
    }
    return "";
  }
  bool notes(const MegatronJob& job, const std::string& word) const {
    return std::ranges::any_of(
        job.notes, [&](const std::string& note) { return note.find(word) != std::string::npos; });
  }
};

const char* const few =
    "--num-layers 4 --hidden-size 96 --num-attention-heads 4 --seq-length 128 --vocab-size 512 "
    "--max-position-embeddings 128 --micro-batch-size 2 --global-batch-size 32 "
    "--attention-dropout 0 --hidden-dropout 0 ";

TEST_F(MegatronArguments, WhatIsExportedComesBack) {
  const auto comes_back = [&] {
    for (plan::Stage& stage : plan.stages) stage.stored_layers = stage.layers - stage.ckpt_layers;
    const MegatronJob job = read(megatron_script(deck, model, plan));
    EXPECT_EQ(plan::text(job.plan), plan::text(plan));
    EXPECT_EQ(model::text(model::config(job.deck.model, job.deck.training.precision)),
              model::text(model));
    const deck::OptimizerKeys &a = job.deck.training.optimizer, &b = deck.training.optimizer;
    EXPECT_EQ(std::tie(a.lr, a.schedule, a.min_lr_ratio, a.warmup_steps, a.beta1, a.beta2, a.eps,
                       a.weight_decay, a.clip_norm),
              std::tie(b.lr, b.schedule, b.min_lr_ratio, b.warmup_steps, b.beta1, b.beta2, b.eps,
                       b.weight_decay, b.clip_norm));
    EXPECT_EQ(job.deck.training.steps, deck.training.steps);
    EXPECT_EQ(job.deck.training.seed, deck.training.seed);
    EXPECT_EQ(job.notes, std::vector<std::string>{});
  };
  comes_back();
  for (const int level : {0, 2, 3}) {
    plan.stages[0].zero_level = level;
    comes_back();
  }
  plan.stages[0].replicas = 2;
  comes_back();
  plan.stages[0].replicas = 1;
  plan.stages[0].zero_level = 1;
  plan.stages[0].optim_offload_ratio = 0.5;
  deck.training.optimizer.warmup_steps = 7;
  deck.training.optimizer.lr = 1.0 / 3000.0;
  comes_back();
  cut();
  for (plan::Stage& stage : plan.stages) stage.devices_per_node = 4, stage.dp = 2;
  plan.microbatches = 32;
  comes_back();
  plan.stages[0].ckpt_layers = 5;
  plan.stages[1].ckpt_layers = 3;
  comes_back();
  for (plan::Stage& stage : plan.stages) stage.ckpt_layers = 2;
  model.qk_norm = deck.model.qk_norm = true;
  comes_back();
  plan.stages.insert(plan.stages.end(), plan.stages.begin(), plan.stages.end());
  for (int i = 0; plan::Stage & stage : plan.stages) {
    stage.first_layer = 2 * i++;
    stage.layers = stage.ckpt_layers = 2;
  }
  plan.order.chunks = plan.order.run_ahead = 2;
  comes_back();
}

TEST_F(MegatronArguments, OfSharedSequencesComeBackOrAreRefused) {
  plan.stages[0].stored_layers = 8;
  plan.stages[0].dp = plan.stages[0].cp = 2;
  plan.microbatches = 32;
  const MegatronJob job = read(megatron_script(deck, model, plan));
  EXPECT_EQ(plan::text(job.plan), plan::text(plan));
  EXPECT_EQ(job.notes, std::vector<std::string>{});
  plan.stages[0].gather_keys = 1;
  EXPECT_EQ(plan::text(read(megatron_script(deck, model, plan)).plan), plan::text(plan));
  std::string one = few + std::string("--cp-comm-type a2a --context-parallel-size ");
  one.replace(one.find("--micro-batch-size 2"), 20, "--micro-batch-size 1");
  EXPECT_EQ(read(one + "2").plan.stages[0].cp, 2);
  EXPECT_NE(refusal_of(one + "8").find("cp = 8 must divide the 4 heads"), std::string::npos)
      << refusal_of(one + "8");
  one.replace(one.find("a2a"), 3, "p2p");
  EXPECT_EQ(read(one + "8").plan.stages[0].gather_keys, 1) << "8 ranks for 4 heads";
  EXPECT_NE(refusal_of(few + std::string("--context-parallel-size 2"))
                .find("microbatch must be 1 where cp = 2"),
            std::string::npos);
}

TEST_F(MegatronArguments, OfExpertsComeBack) {
  plan.stages[0].stored_layers = 8;
  for (const bool normalize : {true, false})
    for (const double loss : {0.0, 0.015}) {
      deck.model.num_experts = 8;
      deck.model.experts_per_token = 3;
      deck.model.expert_ffn_size = 3584;
      deck.model.normalize_topk = normalize;
      deck.model.balance_loss = loss;
      deck.model.z_loss = loss / 10.0;
      deck.model.first_dense_layers = normalize ? 1 : 0;
      model = model::config(deck.model, "bf16");
      for (plan::Stage& stage : plan.stages) stage.ep = normalize ? stage.tp : 1;
      const MegatronJob job = read(megatron_script(deck, model, plan));
      const model::Config found = model::config(job.deck.model, job.deck.training.precision);
      EXPECT_EQ(plan::text(job.plan), plan::text(plan));
      EXPECT_EQ(model::text(found), model::text(model));
      EXPECT_EQ(std::tie(found.ffn_size, found.balance_loss, found.z_loss),
                std::tie(model.ffn_size, model.balance_loss, model.z_loss));
      EXPECT_EQ(job.notes, std::vector<std::string>{});
    }
}

TEST_F(MegatronArguments, OfLatentAttentionAndSigmoidsComeBack) {
  plan.stages[0].stored_layers = 8;
  deck::ModelKeys& keys = deck.model;
  keys.num_kv_heads = 0, keys.num_experts = 16, keys.expert_ffn_size = 640;
  keys.head_dim = 48, keys.rotary_dim = 16, keys.v_head_dim = 32, keys.kv_lora_rank = 64;
  keys.rope_scaling = {};
  keys.shared_expert_ffn_size = 1280, keys.routed_scale = 2.5;
  keys.norm_eps = 1e-6;
  for (const bool all : {true, false}) {
    keys.q_lora_rank = all ? 96 : 0;
    keys.router = all ? "sigmoid" : "softmax";
    keys.balance = all ? "bias" : "none";
    keys.shared_expert_gate = !all;
    keys.experts_per_token = all ? 4 : 2;
    keys.expert_groups = 4, keys.groups_per_token = 2;
    keys.rope_scaling.kind = all ? "yarn" : "none";
    keys.rope_scaling.factor = 40.0;
    keys.rope_scaling.original_seq_len = 4096;
    keys.rope_scaling.mscale = keys.rope_scaling.mscale_all_dim = 0.707;
    model = model::config(keys, "bf16");
    const MegatronJob job = read(megatron_script(deck, model, plan));
    const model::Config found = model::config(job.deck.model, job.deck.training.precision);
    EXPECT_EQ(model::text(found), model::text(model));
    EXPECT_EQ(plan::text(job.plan), plan::text(plan));
    EXPECT_EQ(found.balance_rate, model.balance_rate);
    EXPECT_EQ(found.score_scale(), model.score_scale());
    EXPECT_EQ(job.notes, std::vector<std::string>{});
  }
  keys.rope_scaling = {.kind = "yarn", .factor = 40.0, .original_seq_len = 8192};
  model = model::config(keys, "bf16");
  EXPECT_NE(test::refusal([&] {
              megatron_script(deck, model, plan);
            }).find("yarn scaling of other than original_seq_len = 4096"),
            std::string::npos);
  keys.norm_eps = 1e-5;
  model = model::config(keys, "bf16");
  EXPECT_NE(test::refusal([&] { megatron_script(deck, model, plan); }).find("another epsilon"),
            std::string::npos);
}

TEST_F(MegatronArguments, OfLatentAttentionAreReadOrRefusedByName) {
  const std::string latent =
      few +
      std::string(
          "--swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type "
          "rope --multi-latent-attention --kv-channels 128 --untie-embeddings-and-output-weights ");
  const MegatronJob job = read(latent + "--qk-layernorm");
  const model::Config found = model::config(job.deck.model, "bf16");
  EXPECT_EQ(std::tuple(found.kv_lora_rank, found.q_lora_rank, found.v_head_dim(), found.head_dim(),
                       found.rotary_dim(), found.qk_norm),
            std::tuple(32, 0, 128, 192, 64, false));
  EXPECT_EQ(found.rope_scaling.kind, model::RopeScaling::Kind::none);
  EXPECT_NE(refusal_of(latent).find("--qk-layernorm"), std::string::npos);
  EXPECT_TRUE(notes(job, "norms of latent features have an epsilon of 1e-06 here, there 1e-05"));
  const std::string normed = latent + "--qk-layernorm --rotary-scaling-factor 4 ";
  for (const char* argument :
       {"--mscale 0.7", "--mscale 0 --mscale-all-dim 1", "--rope-type rope --mscale-all-dim 1"}) {
    const std::string all = argument;
    EXPECT_NE(refusal_of(normed + argument).find(all.substr(0, all.find(" --"))), std::string::npos)
        << argument << ": " << refusal_of(normed + argument);
  }
  EXPECT_EQ(refusal_of(normed + "--use-rope-scaling --no-rope-fusion"), "");
}

TEST_F(MegatronArguments, OfExpertsAreReadOrRefusedByName) {
  const std::string dense =
      few + std::string(
                "--swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type "
                "rope --tensor-model-parallel-size 2 --sequence-parallel --overlap-grad-reduce ");
  const std::string experts = dense + "--num-experts 8 ";
  const MegatronJob job = read(experts + "--moe-layer-freq '([1]*4)' --ffn-hidden-size 40");
  EXPECT_EQ(std::tie(job.deck.model.num_experts, job.deck.model.experts_per_token),
            std::tuple(8, 2));
  EXPECT_EQ(model::config(job.deck.model, "bf16").expert_ffn_size, 40);
  EXPECT_EQ(job.deck.model.balance_loss, 0.0);
  EXPECT_TRUE(notes(job, "--moe-router-dtype: a router computes in fp32"));
  for (const char* argument :
       {"--expert-model-parallel-size 2", "--expert-tensor-parallel-size 1",
        "--moe-expert-capacity-factor 1.5", "--moe-shared-expert-intermediate-size 0",
        "--moe-router-group-topk 2", "--moe-router-group-topk 1 --moe-router-num-groups 2",
        "--moe-router-topk-scaling-factor 0", "--moe-router-load-balancing-type sinkhorn",
        "--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 0.01",
        "--moe-router-score-function sqrtsoftplus", "--moe-layer-freq 2",
        "--moe-layer-freq ([0]*1+[1]*4)", "--moe-layer-freq ([1]*3+[0]*1)",
        "--moe-layer-freq [0]*4", "--moe-layer-freq [0,2,1,1]", "--moe-layer-freq [0]+",
        "--moe-layer-freq [1]*1000000000", "--moe-layer-freq [0]*-1+[1]*4",
        "--moe-router-topk 0"}) {
    const std::string found = refusal_of(experts + argument), all = argument;
    EXPECT_NE(found.find(all.substr(0, all.find(' '))), std::string::npos)
        << argument << ": " << found;
  }
  for (const char* argument :
       {"--expert-model-parallel-size 1 --expert-tensor-parallel-size 2",
        "--expert-model-parallel-size 2 --expert-tensor-parallel-size 1",
        "--expert-model-parallel-size 4 --expert-tensor-parallel-size 1",
        "--moe-router-load-balancing-type aux_loss", "--moe-aux-loss-coeff 0",
        "--moe-router-score-function softmax --moe-layer-freq 1", "--moe-layer-freq ([0]+[1]*3)",
        "--moe-layer-freq [0,1,1,1]", "--moe-router-group-topk 2 --moe-router-num-groups 2",
        "--moe-shared-expert-intermediate-size 64 --moe-router-topk-scaling-factor 2.5",
        "--moe-router-score-function sigmoid --moe-router-enable-expert-bias",
        "--moe-router-score-function sigmoid --moe-router-group-topk 1 --moe-router-num-groups 4"})
    EXPECT_EQ(refusal_of(experts + argument), "") << argument;
  const std::string divided = experts +
                              "--expert-model-parallel-size 4 "
                              "--expert-tensor-parallel-size 1 ";
  const auto sends = [&](const std::string& arguments) {
    return read(divided + arguments).plan.stages[0].dispatch_tokens;
  };
  EXPECT_EQ(sends(""), 0);
  EXPECT_EQ(sends("--moe-token-dispatcher-type allgather"), 0);
  EXPECT_EQ(sends("--moe-token-dispatcher-type alltoall"), 1);
  EXPECT_EQ(sends("--moe-token-dispatcher-type flex"), 1);
  EXPECT_EQ(sends("--moe-token-dispatcher-type alltoall --moe-shared-expert-intermediate-size 64"),
            1);
  EXPECT_NE(refusal_of(divided + "--moe-token-dispatcher-type ring").find("allgather and alltoall"),
            std::string::npos);
  EXPECT_NE(refusal_of(dense + "--expert-model-parallel-size 2").find("has no experts"),
            std::string::npos);
  EXPECT_NE(refusal_of(few + std::string("--num-experts 8")).find("num_experts must be 0 for gpt"),
            std::string::npos);
}

TEST_F(MegatronArguments, AreReadOutOfAScript) {
  const MegatronJob job = read(R"(#!/bin/bash
# --num-layers 7 is of a comment
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS=8  # a node
TP=${TP:-2}
LAYERS=6
DISTRIBUTED=(--nproc_per_node $GPUS --nnodes 2 --master_addr $MASTER)
MODEL=(
    --num-layers $LAYERS --hidden-size=96
    --num-attention-heads 4 --seq-length 128   # not 256
    --max-position-embeddings 128 "--vocab-size 512"
    --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope     --group-query-attention --num-query-groups 2
)
torchrun ${DISTRIBUTED[@]} pretrain_gpt.py ${MODEL[@]}     --micro-batch-size 1 --global-batch-size 64 --bf16 --train-samples 6400     --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size 2     --decoder-first-pipeline-num-layers 2 --sequence-parallel     --lr 1e-4 --min-lr 1e-5 --lr-decay-style cosine --save $1 --split '99,1,0'
)");
  const plan::Stage &first = job.plan.stages.at(0), &last = job.plan.stages.at(1);
  EXPECT_EQ(job.deck.cluster.nodes, 2);
  EXPECT_EQ(std::tie(first.layers, last.layers, last.first_layer), std::tuple(2, 4, 2));
  EXPECT_EQ(std::tie(first.tp, first.dp, first.nodes, first.devices_per_node),
            std::tuple(2, 4, 1, 8));
  EXPECT_EQ(job.plan.microbatches, 16);
  EXPECT_EQ(job.deck.model.family, "llama");
  EXPECT_EQ(job.deck.model.num_kv_heads, 2);
  EXPECT_EQ(job.deck.model.ffn_size, 256);  // 8/3 of 96, a multiple of 64
  EXPECT_EQ(job.deck.training.steps, 100);
  EXPECT_NEAR(job.deck.training.optimizer.min_lr_ratio, 0.1, 1e-12);
  EXPECT_EQ(job.deck.training.optimizer.beta2, 0.999);
  EXPECT_TRUE(notes(job, "--attention-dropout 0.1"));
  EXPECT_TRUE(notes(job, "--overlap-grad-reduce"));
  EXPECT_TRUE(notes(job, "--save --split"));
  EXPECT_FALSE(notes(job, "--sequence-parallel"));
}

// Which branch a shell takes is not known from its script.
TEST_F(MegatronArguments, BranchesOfAScriptAreNamed) {
  const std::string tp = few + std::string("--tensor-model-parallel-size $TP");
  const auto said = [&](const std::string& script) {
    const std::string found = refusal_of(script);
    EXPECT_NE(found.find("--tensor-model-parallel-size is $TP, which has several values by branch"),
              std::string::npos)
        << found;
    EXPECT_NE(found.find("found 1, 2"), std::string::npos) << found;
  };
  said("TP=1\nif [ $LARGE = 1 ]; then\n  TP=2\nfi\n" + tp);
  said("TP=1\n[ $LARGE = 1 ] && TP=2\n" + tp);
  said("case $1 in\n  small) TP=1 ;;\n  large) export TP=2 ;;\nesac\n" + tp);
  said("TP=1\nfor x in a b; do TP=2; done\n" + tp);
  EXPECT_EQ(read("TP=1\nif a; then TP=1; fi\n" + tp).plan.stages[0].tp, 1);
  EXPECT_EQ(read("TP=1\nif a; then b; fi\nTP=2\n" + tp).plan.stages[0].tp, 2);
  EXPECT_EQ(read("TP=1\ncd a && TP=2\n" + tp).plan.stages[0].tp, 2);
  EXPECT_EQ(read("if a; then if b; then c; fi; TP=1; fi; TP=2; echo if; " + tp).plan.stages[0].tp,
            2);
  EXPECT_NE(refusal_of("ARGS=\"--seed 1\"\nif a; then ARGS=\"--seed 2\"; fi\n" + std::string(few) +
                       "$ARGS")
                .find("$ARGS has arguments by branch"),
            std::string::npos);
  const MegatronJob job =
      read("if a; then\n MORE=(--bf16 --logging 2)\nfi\n" + std::string(few) + "${MORE[@]}");
  EXPECT_TRUE(notes(job, "branches (if, case, a loop or a test) decide: --bf16"));
  EXPECT_TRUE(notes(job, "unknown here, so not read: --logging"));
}

// A value in quotes may be several arguments.
TEST_F(MegatronArguments, AreReadOutOfVariables) {
  const MegatronJob job = read("A=\"--tensor-model-parallel-size 2 --seed 7\"\nB=\"$A --bf16\"\n" +
                               std::string(few) + "$B --lr 1e-3");
  EXPECT_EQ(job.plan.stages[0].tp, 2);
  EXPECT_EQ(job.deck.training.seed, 7);
  EXPECT_EQ(job.deck.training.precision, "bf16");
  EXPECT_EQ(job.deck.training.optimizer.lr, 1e-3);
}

TEST_F(MegatronArguments, LayoutsOfStagesAreWrittenOut) {
  const auto layers = [&](const std::string& layout) {
    std::vector<int> found;
    for (const plan::Stage& stage :
         read(few + ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout '" +
                     layout + "'"))
             .plan.stages)
      found.push_back(stage.layers);
    return found;
  };
  EXPECT_EQ(layers("Et*3|tL"), (std::vector{3, 1}));
  EXPECT_EQ(layers("E,t|(t)*3,L"), (std::vector{1, 3}));
  EXPECT_EQ(layers("E(t|)*3tL"), (std::vector{1, 1, 1, 1}));  // two chunks a stage
  EXPECT_EQ(layers("E|tt|t|tL"), (std::vector{0, 2, 1, 1}));  // the embedding alone
  EXPECT_EQ(layers("Et*4|L"), (std::vector{4, 0}));
  EXPECT_EQ(layers("E|tt|tt|L"), (std::vector{0, 2, 2, 0}));
  EXPECT_EQ(layers("Et||tt|tL"), (std::vector{3, 1}));  // one, because a part has no layers
  const auto refused = [&](const std::string& layout) {
    return refusal_of(few + ("--pipeline-model-parallel-size 2 "
                             "--pipeline-model-parallel-layout '" +
                             layout + "'"));
  };
  EXPECT_NE(refused("Et|tL").find("2 layers"), std::string::npos);
  EXPECT_NE(refused("Et*4||L").find("3 parts"), std::string::npos);
  EXPECT_NE(refused("Et*4L").find("1 parts for 2 stages"), std::string::npos);
  EXPECT_NE(refused("Et*3|tmL").find("several tokens"), std::string::npos);
  EXPECT_NE(refused("E((t|tL").find("bracket"), std::string::npos);
  EXPECT_NE(refused("Et*99999999999|tL").find("*"), std::string::npos);
  EXPECT_NE(refused("E(((t*9999)*9999)*9999)|tL").find("longer"), std::string::npos);
  EXPECT_NE(refused("Ex|tL").find("'x'"), std::string::npos);
}

TEST_F(MegatronArguments, VirtualStagesAreChunks) {
  const auto chunks = [&](const std::string& arguments) {
    const plan::Plan plan =
        read(few + ("--num-layers 4 --pipeline-model-parallel-size 2 " + arguments)).plan;
    return std::tuple(plan.order.chunks, plan.order.run_ahead, plan.num_stages(),
                      plan.stages.back().layers);
  };
  EXPECT_EQ(chunks(""), std::tuple(1, 1, 2, 2));
  EXPECT_EQ(chunks("--num-virtual-stages-per-pipeline-rank 2"), std::tuple(2, 2, 4, 1));
  EXPECT_EQ(chunks("--num-layers-per-virtual-pipeline-stage 1"), std::tuple(2, 2, 4, 1));
  EXPECT_NE(refusal_of(few + std::string("--pipeline-model-parallel-size 2 "
                                         "--num-virtual-stages-per-pipeline-rank 3"))
                .find("3 chunks"),
            std::string::npos);
  EXPECT_NE(refusal_of(few + std::string("--pipeline-model-parallel-size 2 "
                                         "--num-layers-per-virtual-pipeline-stage 3"))
                .find("--num-layers-per-virtual-pipeline-stage 3"),
            std::string::npos);
}

// Embedding and loss count as a layer each: 4 + 2 layers are six parts of one.
TEST_F(MegatronArguments, EmbeddingAndLossMayCountAsLayers) {
  const auto layers = [&](const std::string& arguments) {
    std::vector<int> found;
    for (const plan::Stage& stage :
         read(few + ("--pipeline-model-parallel-size 2 " + arguments)).plan.stages)
      found.push_back(stage.layers);
    return found;
  };
  const std::string both =
      "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split ";
  EXPECT_EQ(layers(both), (std::vector{2, 2}));
  EXPECT_EQ(layers(both + "--num-layers-per-virtual-pipeline-stage 1"),
            (std::vector{0, 1, 1, 1, 1, 0}));
  EXPECT_EQ(layers(both + "--num-virtual-stages-per-pipeline-rank 3"),
            (std::vector{0, 1, 1, 1, 1, 0}));
  EXPECT_NE(refusal_of(few + ("--pipeline-model-parallel-size 2 " + both +
                              "--decoder-first-pipeline-num-layers 1"))
                .find("excludes"),
            std::string::npos);
}

TEST_F(MegatronArguments, ThatChangeTheModelOtherwiseAreRefusedByName) {
  EXPECT_EQ(refusal_of(few), "");
  for (const char* argument :
       {"--hierarchical-context-parallel-sizes 2", "--squared-relu", "--window-size 128,0",
        "--multi-latent-attention", "--optimizer sgd", "--position-embedding-type none",
        "--rotary-percent 0.5", "--lr-decay-style inverse-square-root"}) {
    const std::string found = refusal_of(few + std::string(argument)), all = argument;
    EXPECT_NE(found.find(all.substr(0, all.find(' '))), std::string::npos)
        << argument << ": " << found;
  }
  EXPECT_EQ(refusal_of(few + std::string("--context-parallel-size 1 --rotary-percent 1")), "");
}

TEST_F(MegatronArguments, ThatAreWrongAreNamed) {
  const auto said = [&](const std::string& more, const std::string& word) {
    const std::string found = refusal_of(few + more);
    EXPECT_NE(found.find(word), std::string::npos) << more << ": " << found;
    EXPECT_LT(found.size(), 600u);
  };
  said("--num-layers 5", "--num-layers is given several values: 4, 5");
  said("--num-query-groups two --group-query-attention",
       "--num-query-groups must be a whole number");
  said("--lr nan", "--lr must be a number");
  said("--tensor-model-parallel-size $TP", "--tensor-model-parallel-size is $TP");
  said("--tensor-model-parallel-size 3", "8 devices");
  said("--tensor-model-parallel-size 2147483647 --pipeline-model-parallel-size 2147483647",
       "8 devices");
  said("--pipeline-model-parallel-size 8", "4 layers do not go into 8 stages");
  said("--recompute-num-layers -1 --recompute-granularity full", "--recompute-num-layers");
  said("--data-parallel-sharding-strategy all --use-megatron-fsdp", "'all' is not known");
  EXPECT_NE(refusal_of("nothing").find("no arguments"), std::string::npos);
  EXPECT_NE(refusal_of("--num-layers 4").find("--hidden-size is missing"), std::string::npos);
  EXPECT_NE(refusal_of(std::string(2 << 20, 'x')).find("1048576"), std::string::npos);
  sets = {};
  said("", "--set cluster.machine");
}

// Whatever bytes a script has, it is read or refused.
TEST_F(MegatronArguments, AnyBytesAreReadOrRefused) {
  const std::string whole = few + std::string("A=(\"--lr $B\" ${C:-3}) # end\n--seed ${A} '");
  std::mt19937 random(7);
  for (int trial = 0; trial < 2000; ++trial) {
    std::string script = whole;
    for (int change = 0; change < 4; ++change) {
      const std::size_t at = random() % script.size();
      if (random() % 3 == 0)
        script.resize(at + 1);
      else
        script[at] =
            char(random() % 5 == 0 ? random() % 256 : "${}()'\"\\ \n-=*|#9"[random() % 17]);
    }
    refusal_of(script);
  }
}

}  // namespace
}  // namespace brume::interop
