/// @file Arguments of Megatron-LM that describe a model.
#include <fmt/format.h>

#include "megatron_arguments.hpp"
#include "megatron_rules.hpp"

namespace brume::interop {
namespace {

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

}  // namespace

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

namespace {

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

}  // namespace

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
  if (model.shared_expert_ffn_size > 0 && stage.split().division().dispatches)
    arguments.push_back({"--moe-shared-expert-overlap"});
  if (balances) arguments.push_back({"--moe-aux-loss-coeff", as_argument(model.balance_loss)});
  if (model.z_loss > 0.0) arguments.push_back({"--moe-z-loss-coeff", as_argument(model.z_loss)});
}

}  // namespace brume::interop
