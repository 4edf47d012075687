/// @file Keys of [model].
#include <fmt/format.h>

#include <string>
#include <vector>

#include "families/families.hpp"
#include "tables.hpp"

namespace brume::deck {
namespace {

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const families::Family& family : families::families()) names.push_back(family.name);
  return names;
}

}  // namespace

const Schema<ModelKeys>& model_schema() {
  using families::Family;
  static const auto schema = [] {
    return Schema<ModelKeys>()
        .key("config", &ModelKeys::config,
             {.help = "config.json of a Hugging Face model, relative to the deck; keys in the "
                      "deck win over it"})
        .key("weights", &ModelKeys::weights,
             {.help = "initial weights: directory of a Hugging Face model (its config.json also "
                      "gives the sizes), a run, or a checkpoint; empty: random",
              .if_given = true})
        .key("family", &ModelKeys::family,
             {.help = "kind of transformer; Hugging Face: model_type", .choices = family_names()})
        .key("num_layers", &ModelKeys::num_layers,
             {.help = "transformer layers; Hugging Face: num_hidden_layers",
              .min = 0,
              .max = 10000,
              .aliases = {"num_hidden_layers"}})
        .key("hidden_size", &ModelKeys::hidden_size,
             {.help = "width of the residual stream", .min = 0, .max = 1 << 20})
        .key("num_heads", &ModelKeys::num_heads,
             {.help = "query heads, which divide hidden_size unless head_dim is set; Hugging "
                      "Face: num_attention_heads",
              .min = 0,
              .max = 1 << 16,
              .aliases = {"num_attention_heads"}})
        .key("num_kv_heads", &ModelKeys::num_kv_heads,
             {.help = "key and value heads; 0: num_heads; Hugging Face: num_key_value_heads",
              .min = 0,
              .max = 1 << 16,
              .aliases = {"num_key_value_heads"}})
        .key("head_dim", &ModelKeys::head_dim,
             {.help = "features per head; 0: hidden_size / num_heads", .min = 0, .max = 1 << 16})
        .key("kv_lora_rank", &ModelKeys::kv_lora_rank,
             {.help = fmt::format("features from which latent attention makes keys and values; 0: "
                                  "no latent attention; {} only",
                                  families::names(&Family::latent)),
              .min = 0,
              .max = 1 << 20})
        .key("q_lora_rank", &ModelKeys::q_lora_rank,
             {.help = "features from which latent attention makes queries; 0: the residual stream",
              .min = 0,
              .max = 1 << 20})
        .key("v_head_dim", &ModelKeys::v_head_dim,
             {.help = "features per value head of latent attention; 0: head_dim",
              .min = 0,
              .max = 1 << 16})
        .key("ffn_size", &ModelKeys::ffn_size,
             {.help = "inner width of the MLP; 0: 4 hidden_size; Hugging Face: intermediate_size",
              .min = 0,
              .max = 1 << 22,
              .aliases = {"intermediate_size"}})
        .key("num_experts", &ModelKeys::num_experts,
             {.help = fmt::format("experts in place of each layer's MLP; 0: none; {} only; Hugging "
                                  "Face: num_local_experts, num_experts",
                                  families::names(&Family::experts)),
              .min = 0,
              .max = 1 << 16,
              .aliases = {"num_local_experts"}})
        .key("first_dense_layers", &ModelKeys::first_dense_layers,
             {.help = "first layers that have an MLP of ffn_size, not experts; Hugging Face: "
                      "first_k_dense_replace, mlp_only_layers",
              .min = 0,
              .max = 1 << 16,
              .aliases = {"first_k_dense_replace"}})
        .key("experts_per_token", &ModelKeys::experts_per_token,
             {.help = "experts that each token goes through; Hugging Face: num_experts_per_tok",
              .min = 1,
              .max = 1 << 16,
              .aliases = {"num_experts_per_tok"}})
        .key("expert_ffn_size", &ModelKeys::expert_ffn_size,
             {.help = "inner width of an expert; 0: ffn_size; Hugging Face: moe_intermediate_size",
              .min = 0,
              .max = 1 << 22,
              .aliases = {"moe_intermediate_size"}})
        .key("shared_expert_ffn_size", &ModelKeys::shared_expert_ffn_size,
             {.help = "inner width of a shared expert, which every token passes; 0: none; Hugging "
                      "Face: shared_expert_intermediate_size",
              .min = 0,
              .max = 1 << 22,
              .aliases = {"shared_expert_intermediate_size"}})
        .key("shared_expert_gate", &ModelKeys::shared_expert_gate,
             {.help = "multiplies the shared expert's output by the sigmoid of a learned product "
                      "with the token, as Qwen2-MoE does"})
        .key("router", &ModelKeys::router,
             {.help = "scores of experts; softmax: of the logits; sigmoid: of each logit, and a "
                      "correction bias per expert is added for the choice only, as DeepSeek-V3 "
                      "does; Hugging Face: scoring_func",
              .choices = {"softmax", "sigmoid"},
              .aliases = {"scoring_func"}})
        .key("normalize_topk", &ModelKeys::normalize_topk,
             {.help = "softmax over a token's chosen experts; false: over all; with router = "
                      "\"sigmoid\" it divides gates by their sum; Hugging Face: norm_topk_prob",
              .aliases = {"norm_topk_prob"}})
        .key("routed_scale", &ModelKeys::routed_scale,
             {.help = "factor of the routed experts' gates; Hugging Face: routed_scaling_factor",
              .min = 1e-6,
              .max = 1e6,
              .aliases = {"routed_scaling_factor"}})
        .key("expert_groups", &ModelKeys::expert_groups,
             {.help = "groups of neighbouring experts, from some of which each token chooses; 1: "
                      "from all experts; Hugging Face: n_group",
              .min = 1,
              .max = 64,
              .aliases = {"n_group"}})
        .key("groups_per_token", &ModelKeys::groups_per_token,
             {.help = "groups from which each token chooses, by their largest score, sigmoids "
                      "by the sum of their two largest; Hugging Face: topk_group",
              .min = 1,
              .max = 64,
              .aliases = {"topk_group"}})
        .key(
            "balance", &ModelKeys::balance,
            {.help = "way to even out the experts' loads without a loss; bias: after each step the "
                     "correction biases of experts move by balance_rate, up below the mean load "
                     "of their layer, down above it; router = \"sigmoid\" only",
             .choices = {"none", "bias"}})
        .key("balance_rate", &ModelKeys::balance_rate,
             {.help = "change of a correction bias per step with balance = \"bias\"; Megatron-LM: "
                      "--moe-router-bias-update-rate",
              .min = 1e-9,
              .max = 1})
        .key("balance_loss", &ModelKeys::balance_loss,
             {.help = "factor of a loss that evens out the experts' loads, per layer and sequence; "
                      "Megatron-LM: --moe-aux-loss-coeff with seq_aux_loss",
              .min = 0,
              .max = 1e3})
        .key("z_loss", &ModelKeys::z_loss,
             {.help = "factor of the mean squared logsumexp of a router's logits, per layer; "
                      "Megatron-LM: --moe-z-loss-coeff",
              .min = 0,
              .max = 1e3})
        .key("rank_load_factor", &ModelKeys::rank_load_factor,
             {.help =
                  "expected load of the busiest rank's experts over the mean of ranks if ep > 1; "
                  "memory is reserved for it, larger loads take several rounds; 1: even loads",
              .min = 1,
              .max = 1e3})
        .key("seq_len", &ModelKeys::seq_len,
             {.unit = "tokens",
              .help = "length of a sequence; Megatron-LM: --seq-length",
              .min = 0,
              .max = 1 << 24})
        .key("vocab_size", &ModelKeys::vocab_size,
             {.help = "number of token ids", .min = 0, .max = 1 << 24})
        .key("tied_head", &ModelKeys::tied_head,
             {.help = "output head shares the token embedding; Hugging Face: tie_word_embeddings",
              .aliases = {"tie_word_embeddings"}})
        .key("qkv_bias", &ModelKeys::qkv_bias,
             {.help = fmt::format("bias in the query, key and value projections; default: true "
                                  "for {}, otherwise false; Hugging Face: attention_bias",
                                  families::names(&Family::biased))})
        .key("linear_bias", &ModelKeys::linear_bias,
             {.help = fmt::format("bias in the other linear layers; default: true for {}, "
                                  "otherwise false; Hugging Face: mlp_bias",
                                  families::names(&Family::biased))})
        .key("layer_norms", &ModelKeys::layer_norms,
             {.help = fmt::format(
                  "norms per layer, 1 or 2; 0: 1 for {}, otherwise 2",
                  families::names([](const Family& one) { return one.layer_norms == 1; })),
              .min = 0,
              .max = 2})
        .key("qk_norm", &ModelKeys::qk_norm,
             {.help = fmt::format("norms of queries and keys per head; {} only",
                                  families::names(&Family::qk_norms))})
        .key("qk_norm_joint", &ModelKeys::qk_norm_joint,
             {.help = "qk_norm normalizes all heads of a token together, as OLMoE does; tp must be "
                      "1"})
        .key("parallel_residual", &ModelKeys::parallel_residual,
             {.help = fmt::format("{}: attention and MLP read the same input; Hugging Face: "
                                  "use_parallel_residual",
                                  families::names([](const Family& one) {
                                    return one.parallel == families::ParallelBlock::by_choice;
                                  }))})
        .key("norm_eps", &ModelKeys::norm_eps,
             {.help = "epsilon of the norms; Hugging Face: rms_norm_eps, layer_norm_eps",
              .min = 1e-12,
              .max = 1})
        .key("rope_theta", &ModelKeys::rope_theta,
             {.help = "base of the rotary angles", .min = 1, .max = 1e12})
        .key("rotary_dim", &ModelKeys::rotary_dim,
             {.help = "rotated features per head, the first ones; 0: all; Hugging Face: "
                      "partial_rotary_factor",
              .min = 0,
              .max = 1 << 16})
        .key("window", &ModelKeys::window,
             {.unit = "tokens",
              .help = fmt::format("sliding window: tokens that each query attends to, itself "
                                  "included; 0: full attention; {} only; Hugging Face: "
                                  "sliding_window",
                                  families::names(&Family::windows)),
              .min = 0,
              .max = 1 << 24,
              .aliases = {"sliding_window"}})
        .key("layer_kinds", &ModelKeys::layer_kinds,
             {.help = "attention per layer, as a repeating pattern; []: all layers use the "
                      "window if it is set; Hugging Face: layer_types",
              .choices = {"full", "window"},
              .aliases = {"layer_types"}})
        .key("window_rope_theta", &ModelKeys::window_rope_theta,
             {.help = "base of the rotary angles in windowed layers, without scaling; 0: as in "
                      "other layers; Hugging Face: rope_local_base_freq",
              .min = 0,
              .max = 1e12})
        .table("rope_scaling", &ModelKeys::rope_scaling, rope_scaling_schema(),
               "Rotary angles for longer sequences")
        .key("query_scalar", &ModelKeys::query_scalar,
             {.help = "divisor of attention scores before its square root; 0: head_dim; Hugging "
                      "Face: query_pre_attn_scalar",
              .min = 0,
              .max = 1e6,
              .aliases = {"query_pre_attn_scalar"}})
        .key("attention_cap", &ModelKeys::attention_cap,
             {.help = fmt::format("soft cap c of attention scores, c tanh(x / c); 0: none; {} "
                                  "only; Hugging Face: attn_logit_softcapping",
                                  families::names(&Family::caps)),
              .min = 0,
              .max = 1e6,
              .aliases = {"attn_logit_softcapping"}})
        .key("logits_cap", &ModelKeys::logits_cap,
             {.help = "soft cap c of the output logits, c tanh(x / c); 0: none; Hugging Face: "
                      "final_logit_softcapping",
              .min = 0,
              .max = 1e6,
              .aliases = {"final_logit_softcapping"}})
        .key("dropout", &ModelKeys::dropout,
             {.help = "must be 0: Brume trains without dropout; set it explicitly if config.json "
                      "has another value",
              .min = 0,
              .max = 0})
        .key("init_std", &ModelKeys::init_std,
             {.help = "standard deviation of initial weights; Hugging Face: initializer_range",
              .min = 0,
              .max = 10,
              .aliases = {"initializer_range"}})
        .key("quantization", &ModelKeys::quantization,
             {.help = "format of the matrices of layers if nothing trains them: blocks of 64 "
                      "values with a scale, in 8.5 bits (int8) or 4.5 bits (nf4) per value; rows "
                      "of other lengths keep their format",
              .choices = {"none", "int8", "nf4"}});
  }();
  return schema;
}

}  // namespace brume::deck
