#include "interop/megatron.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/text.hpp"
#include "megatron_rules.hpp"
#include "plan/shapes.hpp"

namespace brume::interop {
namespace {

using Arguments = std::vector<MegatronArgument>;

void require_like(bool holds, const std::string& what) {
  require(holds, Failure::input, "the export to {} has no {}", megatron_version, what);
}

/// A value as the shortest text that reads back the same.
template <typename T>
std::string as_argument(T value) {
  return fmt::format("{}", value);
}

/// What all stages must have alike there.
void check_stages(const plan::Plan& plan) {
  const plan::Stage& first = plan.stages[0];
  for (const plan::Stage& s : plan.stages) {
    require_like(s.group.empty(), "stages on several groups of nodes");
    const auto same = [&](auto plan::Stage::*member, const char* knob, const char* key) {
      require_like(s.*member == first.*member,
                   fmt::format("stages with different {} (plan for it with {})", knob, key));
    };
    same(&plan::Stage::microbatch, "microbatch", "search.unequal_stages = false");
    same(&plan::Stage::dp, "dp", "search.unequal_stages = false");
    same(&plan::Stage::cp, "cp", "search.unequal_stages = false");
    same(&plan::Stage::tp, "tp", "search.unequal_stages = false");
    same(&plan::Stage::ep, "ep", "search.unequal_stages = false");
    same(&plan::Stage::zero_level, "zero_level", "one of search.zero_levels");
    same(&plan::Stage::replicas, "replicas", "search.shard_within_node = false");
    same(&plan::Stage::optim_offload_ratio, "optim_offload_ratio", "one of search.optim_offload");
    require_like(s.weight_offload_ratio == 0.0,
                 "weight_offload_ratio above 0 (search.weight_offload = [0.0])");
    require_like(s.grad_offload_ratio == 0.0,
                 "grad_offload_ratio above 0 (search.grad_offload = [0.0])");
    require_like(s.act_offload_ratio == 0.0,
                 "act_offload_ratio above 0 (search.act_offload = [0.0])");
    require_like(!plan::uses_disk(s), "state on disk (cluster.disk_gib = 0)");
  }
  require_like(plan.order.chunks > 1 || plan.order.is_1f1b(),
               plan::order_text(plan) + " (search.trainer = \"megatron\")");
  if (plan.order.chunks > 1) {
    require_like(plan.order.run_ahead == 2, "run_ahead = 1 with virtual stages (run_ahead = 2)");
    require_like(
        plan.microbatches % plan.pipeline_size() == 0,
        fmt::format("interleaving of {} microbatches over {} stages: the number must be a multiple",
                    plan.microbatches, plan.pipeline_size()));
  }
  require_like(plan.num_stages() == 1 || plan.order.chunks > 1 || plan.order.run_ahead == 1,
               "run_ahead = 2 (search.run_ahead = [1])");
  require_like(plan.num_stages() == 1 || first.zero_level <= 1,
               fmt::format("zero_level {} with pipeline stages (search.zero_levels = [0, 1])",
                           first.zero_level));
}

/// --qk-layernorm are the norms of latent features.
void add_latent(Arguments& arguments, const model::Config& model) {
  require_like(
      model.norm_eps == model::latent_norm_eps,
      fmt::format("norms of latent features with another epsilon than norm_eps, which must "
                  "be {}",
                  model::latent_norm_eps));
  const model::RopeScaling& scaling = model.rope_scaling;
  const bool yarn = scaling.kind == model::RopeScaling::Kind::yarn;
  arguments.insert(arguments.end(), {{"--multi-latent-attention"},
                                     {"--qk-layernorm"},
                                     {"--no-rope-fusion"},  // which asks for yarn
                                     {"--kv-lora-rank", as_argument(model.kv_lora_rank)},
                                     {"--qk-head-dim", as_argument(model.still_dim())},
                                     {"--qk-pos-emb-head-dim", as_argument(model.rotary_dim())},
                                     {"--v-head-dim", as_argument(model.v_head_dim())},
                                     {"--rope-type", yarn ? "yarn" : "rope"}});
  if (model.q_lora_rank > 0) arguments.push_back({"--q-lora-rank", as_argument(model.q_lora_rank)});
  if (!yarn) return;
  require_like(has_usual_yarn(scaling),
               "yarn scaling of other than original_seq_len = 4096, beta_fast = 32, beta_slow = 1 "
               "and both mscale and mscale_all_dim or none");
  const bool given = scaling.mscale > 0.0;
  arguments.insert(arguments.end(), {{"--rotary-scaling-factor", as_argument(scaling.factor)},
                                     {"--mscale", as_argument(given ? scaling.mscale : 1.0)},
                                     {"--mscale-all-dim", as_argument(scaling.mscale_all_dim)}});
}

void add_model(Arguments& arguments, const model::Config& model) {
  const model::MlpKind mlp = model.mlp();
  require_like((mlp == model::MlpKind::gelu_tanh || mlp == model::MlpKind::swiglu) &&
                   !model.parallel() && !model.post_norms(),
               fmt::format("family {}", model.family->name));
  require_like(model.latent() || model.rotary_dim() == model.head_dim(),
               "positions that turn a part of a head");
  require_like(model.window == 0, "attention within a window");
  require_like(model.query_scalar == 0.0 && model.attention_cap == 0.0 && model.logits_cap == 0.0,
               "scores and logits with a scale or a cap of their own");
  using Scaling = model::RopeScaling::Kind;
  require_like(model.rope_scaling.kind == Scaling::none ||
                   model.rope_scaling.kind == (model.latent() ? Scaling::yarn : Scaling::llama3),
               fmt::format("this scaling of rotary angles{}",
                           model.latent() ? " with latent attention" : ""));
  const bool rms = model.norm() == model::NormKind::rms;
  arguments.insert(arguments.end(), {{"--num-layers", as_argument(model.num_layers)},
                                     {"--hidden-size", as_argument(model.hidden_size)},
                                     {"--ffn-hidden-size", as_argument(model.ffn_size)},
                                     {"--num-attention-heads", as_argument(model.num_heads)}});
  // Latent attention has sizes of its own, but without this one the heads must divide hidden_size.
  arguments.push_back(
      {"--kv-channels", as_argument(model.latent() ? model.v_head_dim() : model.head_dim())});
  if (model.latent()) add_latent(arguments, model);
  arguments.insert(arguments.end(),
                   {{"--seq-length", as_argument(model.seq_len)},
                    {"--max-position-embeddings", as_argument(model.seq_len)},
                    {"--vocab-size", as_argument(model.vocab_size)},
                    {"--make-vocab-size-divisible-by", "1"},
                    {"--position-embedding-type", model.rotary() ? "rope" : "learned_absolute"},
                    {"--normalization", rms ? "RMSNorm" : "LayerNorm"},
                    {"--norm-epsilon", as_argument(model.norm_eps)},
                    {"--init-method-std", as_argument(model.init_std)},
                    {"--attention-dropout", "0"},
                    {"--hidden-dropout", "0"}});
  if (model.kv_heads() != model.num_heads)
    arguments.insert(arguments.end(), {{"--group-query-attention"},
                                       {"--num-query-groups", as_argument(model.kv_heads())}});
  if (mlp == model::MlpKind::swiglu) arguments.push_back({"--swiglu"});
  require_like(!model.qk_norm_joint, "qk_norm_joint");
  if (model.qk_norm) arguments.push_back({"--qk-layernorm"});
  if (!model.tied_head) arguments.push_back({"--untie-embeddings-and-output-weights"});
  if (!model.linear_bias) arguments.push_back({"--disable-bias-linear"});
  if (model.qkv_bias && !model.linear_bias) arguments.push_back({"--add-qkv-bias"});
  require_like(model.qkv_bias || !model.linear_bias, "linear_bias without qkv_bias");
  if (model.rotary()) {
    const auto base = std::int64_t(model.rope_theta);
    require_like(double(base) == model.rope_theta,
                 fmt::format("rope_theta = {}: --rotary-base is a whole number", model.rope_theta));
    arguments.push_back({"--rotary-base", as_argument(base)});
  }
  if (model.rope_scaling.kind == model::RopeScaling::Kind::llama3) {
    const model::RopeScaling& scaling = model.rope_scaling;
    require_like(scaling.low_freq_factor == 1.0 && scaling.high_freq_factor == 4.0 &&
                     scaling.original_seq_len == 8192,
                 "llama3 scaling of other than 1, 4 and 8192");
    arguments.insert(arguments.end(), {{"--use-rope-scaling"},
                                       {"--rope-scaling-factor", as_argument(scaling.factor)}});
  }
}

void check_contexts(const plan::Stage& stage, const model::Config& model) {
  if (stage.gather_keys == 1) return;
  const std::string fault = plan::paired_context_fault(model, stage.cp, stage.tp);
  require_like(fault.empty(), fault + " (search.trainer = \"megatron\")");
}

/// Sigmoids are chosen with a bias, which steps of a rate 0 leave as it is.
void add_router(Arguments& arguments, const model::Config& model) {
  const bool sigmoid = model.router == model::RouterKind::sigmoid;
  require_like(!model.normalize_topk || model.experts_per_token > 1,
               "normalize_topk = true with experts_per_token = 1 (normalize_topk = false)");
  require_like(!sigmoid || model.normalize_topk == (model.experts_per_token > 1),
               "normalize_topk = false of sigmoids");
  require_like(chooses_groups_alike(model),
               fmt::format("{} of {} groups with experts_per_token = {}", model.groups_per_token,
                           model.expert_groups, model.experts_per_token));
  if (sigmoid)
    arguments.insert(arguments.end(),
                     {{"--moe-router-score-function", "sigmoid"},
                      {"--moe-router-enable-expert-bias"},
                      {"--moe-router-bias-update-rate", as_argument(model.balance_rate)}});
  else if (!model.normalize_topk)
    arguments.push_back({"--moe-router-pre-softmax"});
  if (model.routed_scale != 1.0)
    arguments.push_back({"--moe-router-topk-scaling-factor", as_argument(model.routed_scale)});
  if (model.expert_groups > 1)
    arguments.insert(arguments.end(),
                     {{"--moe-router-num-groups", as_argument(model.expert_groups)},
                      {"--moe-router-group-topk", as_argument(model.groups_per_token)}});
}

/// Tensor-parallel ranks cut each expert or have whole ones.
void add_experts(Arguments& arguments, const model::Config& model, const plan::Stage& stage) {
  if (model.num_experts == 0) return;
  const bool balances = model.balance_loss > 0.0;
  const bool gathers = stage.expert_data_ranks() > 1 && stage.dispatch_tokens == 0;
  arguments.insert(arguments.end(),
                   {{"--num-experts", as_argument(model.num_experts)},
                    {"--moe-router-topk", as_argument(model.experts_per_token)},
                    {"--moe-ffn-hidden-size", as_argument(model.expert_ffn_size)},
                    {"--moe-router-load-balancing-type", balances ? "seq_aux_loss" : "none"},
                    {"--moe-router-dtype", "fp32"},
                    {"--moe-token-dispatcher-type", gathers ? "allgather" : "alltoall"},
                    {"--moe-grouped-gemm"},
                    {"--expert-model-parallel-size", as_argument(stage.ep)},
                    {"--expert-tensor-parallel-size", as_argument(stage.ep > 1 ? 1 : stage.tp)}});
  if (const int dense = model.first_dense_layers; dense > 0)
    arguments.push_back(
        {"--moe-layer-freq", fmt::format("([0]*{}+[1]*{})", dense, model.num_layers - dense)});
  add_router(arguments, model);
  if (model.shared_expert_ffn_size > 0)
    arguments.push_back(
        {"--moe-shared-expert-intermediate-size", as_argument(model.shared_expert_ffn_size)});
  if (model.shared_expert_gate) arguments.push_back({"--moe-shared-expert-gate"});
  if (balances) arguments.push_back({"--moe-aux-loss-coeff", as_argument(model.balance_loss)});
  if (model.z_loss > 0.0) arguments.push_back({"--moe-z-loss-coeff", as_argument(model.z_loss)});
}

/// Layers of each stage: "Et*16|t*15L", "E|t*2|L", of stages alike nothing. Stages on the same
/// devices are its virtual ones.
void add_pipeline(Arguments& arguments, const plan::Plan& plan) {
  if (plan.num_stages() == 1) return;
  arguments.push_back({"--pipeline-model-parallel-size", as_argument(plan.pipeline_size())});
  if (plan.order.chunks > 1)
    arguments.push_back({"--num-virtual-stages-per-pipeline-rank", as_argument(plan.order.chunks)});
  const auto layers = [](const plan::Stage& stage) { return stage.layers; };
  if (std::ranges::all_of(plan.stages, [&](const plan::Stage& stage) {
        return layers(stage) == layers(plan.stages[0]);
      }))
    return;
  std::string layout = "E";
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    if (i > 0) layout += "|";
    if (layers(plan.stages[i]) > 0) layout += fmt::format("t*{}", layers(plan.stages[i]));
  }
  arguments.push_back({"--pipeline-model-parallel-layout", layout + "L"});
}

void add_recomputation(Arguments& arguments, const plan::Plan& plan) {
  const int layers = std::ranges::max(plan.stages, {}, &plan::Stage::ckpt_layers).ckpt_layers;
  bool all = true;
  for (const plan::Stage& stage : plan.stages) all = all && stage.ckpt_layers == stage.layers;
  if (all) {
    arguments.insert(arguments.end(), {{"--recompute-granularity", "full"},
                                       {"--recompute-method", "uniform"},
                                       {"--recompute-num-layers", "1"}});
    return;
  }
  for (const plan::Stage& stage : plan.stages)
    require_like(stage.ckpt_layers == layers || stage.layers == 0,
                 "stages with different full_recompute_layers: it has one number for all");
  // It recomputes the first so many layers of a stage where the plan has the last: the same work.
  if (layers > 0)
    arguments.insert(arguments.end(), {{"--recompute-granularity", "full"},
                                       {"--recompute-method", "block"},
                                       {"--recompute-num-layers", as_argument(layers)}});
}

void add_sharding(Arguments& arguments, const plan::Stage& stage) {
  const bool sharded = stage.data_ranks() > 1 && stage.zero_level > 0;
  if (sharded) arguments.push_back({"--use-distributed-optimizer"});
  if (sharded && stage.zero_level >= 2)
    arguments.insert(arguments.end(),
                     {{"--use-megatron-fsdp"},
                      {"--data-parallel-sharding-strategy",
                       stage.zero_level == 2 ? "optim_grads" : "optim_grads_params"},
                      {"--ckpt-format", "fsdp_dtensor"}});  // its parser asks for it
  if (sharded && stage.replicas > 1)
    arguments.push_back({"--num-distributed-optimizer-instances", as_argument(stage.replicas)});
  if (stage.data_ranks() > 1) arguments.push_back({"--overlap-grad-reduce"});
  if (sharded) arguments.push_back({"--overlap-param-gather"});
  if (stage.optim_offload_ratio > 0.0) {
    require_like(stage.zero_level <= 1, "offloaded optimizer state beside zero_level 2 or 3");
    arguments.insert(arguments.end(),
                     {{"--optimizer-cpu-offload"},
                      {"--optimizer-offload-fraction", as_argument(stage.optim_offload_ratio)},
                      {"--use-precision-aware-optimizer"}});
  }
}

void add_training(Arguments& arguments, const deck::Deck& deck, const model::Config& model) {
  const deck::TrainingKeys& training = deck.training;
  const deck::OptimizerKeys& optimizer = training.optimizer;
  if (model.precision == model::Precision::bf16) arguments.push_back({"--bf16"});
  if (model.precision == model::Precision::fp8)  // by Transformer Engine
    arguments.insert(arguments.end(),
                     {{"--bf16"}, {"--fp8-format", "hybrid"}, {"--fp8-recipe", "tensorwise"}});
  if (model.precision == model::Precision::fp16) arguments.push_back({"--fp16"});
  if (training.loss_scale > 0.0)
    arguments.push_back({"--loss-scale", as_argument(training.loss_scale)});
  require_like(optimizer.name == "adamw",
               fmt::format("training.optimizer.name = \"{}\"", optimizer.name));
  require_like(optimizer.moments == "fp32", "training.optimizer.moments");
  require_like(optimizer.groups.empty(), "training.optimizer.groups");
  require_like(training.adapter.rank == 0, "training.adapter");
  require_like(training.preference.beta == 0.0, "training.preference");
  require_like(training.epochs == 0.0, "training.epochs: say steps or tokens");
  const std::int64_t batch_tokens = std::int64_t{training.global_batch} * model.seq_len;
  const std::int64_t steps =
      training.steps > 0 ? training.steps
                         : (std::int64_t(training.tokens) + batch_tokens - 1) / batch_tokens;
  arguments.insert(arguments.end(),
                   {{"--train-iters", as_argument(steps)},
                    {"--lr", as_argument(optimizer.lr)},
                    {"--min-lr", as_argument(optimizer.lr * optimizer.min_lr_ratio)},
                    {"--lr-decay-style", optimizer.schedule == "wsd" ? "WSD" : optimizer.schedule},
                    {"--lr-warmup-iters", as_argument(optimizer.warmup_steps)},
                    {"--weight-decay", as_argument(optimizer.weight_decay)},
                    {"--adam-beta1", as_argument(optimizer.beta1)},
                    {"--adam-beta2", as_argument(optimizer.beta2)},
                    {"--adam-eps", as_argument(optimizer.eps)},
                    {"--clip-grad", as_argument(optimizer.clip_norm)},
                    {"--seed", as_argument(training.seed)}});
  if (optimizer.schedule == "wsd")
    arguments.insert(arguments.end(), {{"--lr-wsd-decay-style", "linear"},
                                       {"--lr-wsd-decay-iters",
                                        as_argument(optimizer.decay_steps > 0
                                                        ? optimizer.decay_steps
                                                        : std::max<std::int64_t>(1, steps / 10))}});
}

/// Lines of a script that set how many queues of work a device takes, where its parser asks for a
/// number.
std::string connections(const plan::Stage& stage) {
  if (stage.data_ranks() > 1 && stage.zero_level >= 2)
    return "# FSDP refuses 1.\n"
           "unset CUDA_DEVICE_MAX_CONNECTIONS\n";
  if (stage.tp > 1 || stage.cp > 1)
    return "# Tensor and context parallelism want this on devices before Blackwell.\n"
           "export CUDA_DEVICE_MAX_CONNECTIONS=1\n";
  return "";
}

}  // namespace

std::vector<MegatronArgument> megatron_arguments(const deck::Deck& deck, const model::Config& model,
                                                 const plan::Plan& plan) {
  check_stages(plan);
  check_contexts(plan.stages[0], model);
  const plan::Stage& stage = plan.stages[0];
  Arguments arguments;
  add_model(arguments, model);
  add_experts(arguments, model, stage);
  if (stage.tp > 1)
    arguments.insert(arguments.end(), {{"--tensor-model-parallel-size", as_argument(stage.tp)},
                                       {"--sequence-parallel"}});
  if (stage.cp > 1)
    arguments.insert(arguments.end(),
                     {{"--context-parallel-size", as_argument(stage.cp)},
                      {"--cp-comm-type", stage.gather_keys == 1 ? "all_gather" : "a2a"}});
  add_pipeline(arguments, plan);
  arguments.insert(arguments.end(), {{"--micro-batch-size", as_argument(stage.microbatch)},
                                     {"--global-batch-size", as_argument(plan.global_batch)}});
  add_sharding(arguments, stage);
  add_recomputation(arguments, plan);
  add_training(arguments, deck, model);
  return arguments;
}

std::string megatron_script(const deck::Deck& deck, const model::Config& model,
                            const plan::Plan& plan) {
  const Arguments arguments = megatron_arguments(deck, model, plan);
  const int per_node = std::min(deck.cluster.devices_per_node, plan.devices());
  const auto nodes = ceil_div(plan.devices(), per_node);
  std::string text = fmt::format(
      "#!/bin/sh\n"
      "# For {}: run this in its folder,\n"
      "# on {}, with arguments for data, tokenizer and checkpoints.\n"
      "{}exec torchrun --nnodes {} --nproc-per-node {}",
      megatron_version, nodes > 1 ? fmt::format("each of {} nodes", nodes) : "one node",
      connections(plan.stages[0]), nodes, per_node);
  if (nodes > 1)
    text +=
        " \\\n"
        "  --node-rank \"${NODE_RANK:?which of the nodes this is, from 0}\" \\\n"
        "  --master-addr \"${MASTER_ADDR:?the host name of node 0}\" \\\n"
        "  --master-port \"${MASTER_PORT:-29500}\"";
  text += " \\\n  pretrain_gpt.py";
  for (const auto& [name, value] : arguments) {
    const bool quoted = value.find_first_of("|*") != std::string::npos;
    text += fmt::format(" \\\n  {}{}", name,
                        value.empty() ? ""
                        : quoted      ? " '" + value + "'"
                                      : " " + value);
  }
  return text + " \\\n  \"$@\"\n";
}

}  // namespace brume::interop
