/// @file Sizes of a model: from deck keys, and what follows from them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "config_parts.hpp"
#include "model/model.hpp"
#include "model/storage.hpp"

namespace brume::model {
namespace {

std::vector<bool> windows(const std::vector<std::string>& names) {
  std::vector<bool> windows;
  for (const std::string& name : names) windows.push_back(name == "window");
  return windows;
}

Quantization quantization(const std::string& name) {
  for (const Quantization one : {Quantization::int8, Quantization::nf4})
    if (name == brume::name(one)) return one;
  return Quantization::none;
}

RopeScaling rope_scaling(const deck::RopeScalingKeys& keys) {
  using Kind = RopeScaling::Kind;
  return {.kind = keys.kind == "linear"   ? Kind::linear
                  : keys.kind == "llama3" ? Kind::llama3
                  : keys.kind == "yarn"   ? Kind::yarn
                                          : Kind::none,
          .factor = keys.factor,
          .low_freq_factor = keys.low_freq_factor,
          .high_freq_factor = keys.high_freq_factor,
          .original_seq_len = keys.original_seq_len,
          .beta_fast = keys.beta_fast,
          .beta_slow = keys.beta_slow,
          .truncate = keys.truncate,
          .attention_factor = keys.attention_factor,
          .mscale = keys.mscale,
          .mscale_all_dim = keys.mscale_all_dim};
}

}  // namespace

Config generating(Config config, const Generation& sizes) {
  config.moments = Moments::fp32;
  freeze(config, [](const Parameter&) { return true; });
  config.generation = sizes;
  config.padding = 0;
  config.isolated = true;
  config.document_share = 1.0;
  config.exchanges_normed = false;
  // Few tokens may all choose the experts of one rank.
  config.rank_load_factor = std::max(1, config.num_experts);
  return config;
}

bool Config::reads_documents(SegmentKind kind) const {
  return isolated && (attends(kind) || (kind == SegmentKind::embedding && !rotary()));
}

float Config::embedding_scale() const {
  if (!family->scaled_embedding) return 1.0f;
  const auto scale = float(std::sqrt(double(hidden_size)));  // rounded as weights are
  return with_storage(precision, [&]<class Storage>() { return float(Storage(scale)); });
}

bool Config::keeps_latents() const {
  return generates() && latent() && quantization == Quantization::none &&
         adapter.find(Module::kv_up) == nullptr;
}

float Config::score_scale() const {
  if (latent()) {
    const double scalar = query_scalar > 0.0 ? query_scalar : head_dim();
    return float(rope_scaling.latent_score_factor() / std::sqrt(scalar));
  }
  return query_scalar > 0.0 ? float(1.0 / std::sqrt(query_scalar))
                            : 1.0f / std::sqrt(float(head_dim()));
}

Config config(const deck::ModelKeys& keys, std::string_view precision) {
  require(keys.config.empty(), Failure::bug, "model: config = \"{}\" was not read", keys.config);
  const Family& family = families::family(keys.family);
  Config config{.family = &family,
                .num_layers = keys.num_layers,
                .hidden_size = keys.hidden_size,
                .num_heads = keys.num_heads,
                .num_kv_heads = keys.num_kv_heads,
                .head_size = keys.head_dim,
                .kv_lora_rank = keys.kv_lora_rank,
                .q_lora_rank = keys.q_lora_rank,
                .v_head_size = keys.v_head_dim,
                .ffn_size = keys.ffn_size == 0 ? 4 * keys.hidden_size : keys.ffn_size,
                .num_experts = keys.num_experts,
                .first_dense_layers = keys.first_dense_layers,
                .experts_per_token = keys.num_experts > 0 ? keys.experts_per_token : 0,
                .shared_expert_ffn_size = keys.shared_expert_ffn_size,
                .shared_expert_gate = keys.shared_expert_gate,
                .router = keys.router == "sigmoid" ? RouterKind::sigmoid : RouterKind::softmax,
                .normalize_topk = keys.normalize_topk,
                .routed_scale = keys.routed_scale,
                .expert_groups = keys.expert_groups,
                .groups_per_token = keys.groups_per_token,
                .balance_rate = keys.balance == "bias" ? keys.balance_rate : 0.0,
                .balance_loss = keys.balance_loss,
                .z_loss = keys.z_loss,
                .rank_load_factor = keys.rank_load_factor,
                .seq_len = keys.seq_len,
                .vocab_size = keys.vocab_size,
                .tied_head = keys.tied_head,
                .qkv_bias = keys.qkv_bias,
                .linear_bias = keys.linear_bias,
                .layer_norms = keys.layer_norms == 0 ? family.layer_norms : keys.layer_norms,
                .qk_norm = keys.qk_norm,
                .qk_norm_joint = keys.qk_norm_joint,
                .parallel_residual = keys.parallel_residual,
                .norm_eps = keys.norm_eps,
                .rope_theta = keys.rope_theta,
                .rotary_size = keys.rotary_dim,
                .rope_scaling = rope_scaling(keys.rope_scaling),
                .window = keys.window,
                .windows = windows(keys.layer_kinds),
                .window_rope_theta = keys.window_rope_theta,
                .query_scalar = keys.query_scalar,
                .attention_cap = keys.attention_cap,
                .logits_cap = keys.logits_cap,
                .init_std = keys.init_std,
                .isolated = keys.isolated,
                .pairs = keys.pairs,
                .precision = model::precision(precision),
                .quantization = quantization(keys.quantization),
                .optimizer = &optimizer(keys.optimizer),
                .moments = moments(keys.moments)};
  if (config.num_experts > 0)
    config.expert_ffn_size = keys.expert_ffn_size == 0 ? config.ffn_size : keys.expert_ffn_size;
  check_config(config);
  config.adapter = adapter(keys.adapter, config);
  freeze(config, keys.groups);
  return config;
}

const char* name(Precision precision) {
  switch (precision) {
    case Precision::fp32: return "fp32";
    case Precision::bf16: return "bf16";
    case Precision::fp16: return "fp16";
    case Precision::fp8: return "fp8";
  }
  return "";
}

Precision precision(std::string_view name) {
  for (const Precision one : {Precision::fp32, Precision::bf16, Precision::fp16, Precision::fp8})
    if (name == model::name(one)) return one;
  throw Error(Failure::input, "precision \"{}\" is none of fp32, bf16, fp16 and fp8", name);
}

std::string dequantize_kind(const Config& m) {
  return fmt::format("{}_{}", name(OperatorKind::dequantize), brume::name(m.quantization));
}

std::vector<std::pair<LayerKind, int>> layer_counts(const Config& config) {
  std::map<LayerKind, int> counts;
  for (int layer = 0; layer < config.num_layers; ++layer) ++counts[config.layer_kind(layer)];
  return {counts.begin(), counts.end()};
}

}  // namespace brume::model
