#include "deck/deck.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/path.hpp"
#include "cluster.hpp"
#include "families/families.hpp"
#include "training.hpp"

namespace brume::deck {
namespace {

const Schema<RopeScalingKeys>& rope_scaling_schema() {
  static const auto schema = [] {
    return Schema<RopeScalingKeys>()
        .key("kind", &RopeScalingKeys::kind,
             {.help = "scaling of rotary frequencies: linear (all), llama3 (low ones), yarn (low "
                      "ones, and larger scores); Hugging Face: rope_scaling.rope_type",
              .choices = {"none", "linear", "llama3", "yarn"}})
        .key("factor", &RopeScalingKeys::factor,
             {.help = "divisor of the frequencies", .min = 1, .max = 1e6})
        .key("low_freq_factor", &RopeScalingKeys::low_freq_factor,
             {.help = "llama3: frequencies with fewer turns than this are fully divided",
              .min = 1e-3,
              .max = 1e6})
        .key("high_freq_factor", &RopeScalingKeys::high_freq_factor,
             {.help = "llama3: frequencies with more turns than this are unchanged",
              .min = 1e-3,
              .max = 1e6})
        .key("original_seq_len", &RopeScalingKeys::original_seq_len,
             {.unit = "tokens",
              .help = "llama3, yarn: length in which turns are counted; Hugging Face: "
                      "original_max_position_embeddings",
              .min = 1,
              .max = 1 << 24})
        .key("beta_fast", &RopeScalingKeys::beta_fast,
             {.help = "yarn: frequencies with more turns than this are unchanged",
              .min = 1e-3,
              .max = 1e6})
        .key("beta_slow", &RopeScalingKeys::beta_slow,
             {.help = "yarn: frequencies with fewer turns than this are fully divided",
              .min = 1e-3,
              .max = 1e6})
        .key("truncate", &RopeScalingKeys::truncate,
             {.help = "yarn: the range between beta_fast and beta_slow ends at whole numbers of "
                      "pairs"})
        .key("attention_factor", &RopeScalingKeys::attention_factor,
             {.help = "yarn: factor of cosines and sines; 0: m(mscale) / m(mscale_all_dim) with "
                      "m(s) = 1 + 0.1 s ln(factor), or m(1) unless both are set",
              .min = 0,
              .max = 1e3})
        .key("mscale", &RopeScalingKeys::mscale,
             {.help = "yarn: see attention_factor; 0: not set", .min = 0, .max = 1e3})
        .key("mscale_all_dim", &RopeScalingKeys::mscale_all_dim,
             {.help = "yarn: see attention_factor; with kv_lora_rank, scores are multiplied by "
                      "m(mscale_all_dim)^2, too; 0: not set",
              .min = 0,
              .max = 1e3});
  }();
  return schema;
}

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

namespace {

const Schema<DataKeys>& data_schema() {
  static const auto schema = [] {
    return Schema<DataKeys>()
        .key("train", &DataKeys::train, {.help = "token file for training", .if_given = true})
        .key("files", &DataKeys::files,
             {.help = "token files for training instead of train, whose samples are mixed"})
        .key("mixture", &DataKeys::weights,
             {.help = "mixture weights of files, relative; []: by number of tokens, or of pairs",
              .min = 1e-6,
              .max = 1e12,
              .aliases = {"weights"}})
        .key("valid", &DataKeys::valid, {.help = "token file for validation; empty: none"})
        .key("order", &DataKeys::order,
             {.help = "order of the samples", .choices = {"sequential", "shuffled"}})
        .key("documents", &DataKeys::documents,
             {.help = "packed documents; join: attention crosses documents; isolate: it does "
                      "not, and positions restart (on GPUs with Brume's kernels, not cuDNN's)",
              .choices = {"join", "isolate"}})
        .key("begin_token", &DataKeys::begin_token,
             {.help = "id of the token that starts a document, for token files without document "
                      "boundaries; -1: none",
              .min = -1,
              .aliases = {"bos_token"}})
        .key("end_token", &DataKeys::end_token,
             {.help = "id of the token that ends a document, for token files without document "
                      "boundaries; -1: none",
              .min = -1,
              .aliases = {"eos_token"}})
        .key("eval_every", &DataKeys::eval_every,
             {.unit = "steps", .help = "steps between validations; 0: only at the end", .min = 0})
        .key("eval_sequences", &DataKeys::eval_sequences,
             {.unit = "sequences",
              .help = "sequences per validation, the same each time; at most the file's",
              .min = 1,
              .max = 1 << 24});
  }();
  return schema;
}

}  // namespace

const Schema<SearchKeys>& search_schema() {
  static const auto schema = [] {
    return Schema<SearchKeys>()
        .key("trainer", &SearchKeys::trainer,
             {.help = "target trainer, which must be able to run the plan; empty: Brume",
              .choices = {"", "megatron", "torchtitan"},
              .aliases = {"for"}})
        .key("stages", &SearchKeys::stages,
             {.help = "numbers of pipeline stages to try; []: all", .min = 1})
        .key("dp", &SearchKeys::dp, {.help = "data-parallel degrees to try; []: all", .min = 1})
        .key("cp", &SearchKeys::cp,
             {.help = "context-parallel degrees to try: cp ranks share a sequence; []: all for "
                      "sequences of more than 8192 tokens, else 1",
              .min = 1})
        .key("gather_keys", &SearchKeys::gather_keys,
             {.help = "exchanges of ranks that share a sequence to try; 0: tokens for heads, of "
                      "which a rank attends with a part; 1: keys and values of all tokens; []: "
                      "both",
              .min = 0,
              .max = 1})
        .key("tp", &SearchKeys::tp,
             {.help = "tensor-parallel degrees to try; []: all within a node; larger ones use "
                      "whole nodes",
              .min = 1})
        .key("ep", &SearchKeys::ep,
             {.help = "expert-parallel degrees to try: ranks that divide whole experts; 1: tp cuts "
                      "each expert; []: 1, tp, the largest within a node, the largest",
              .min = 1})
        .key("dispatch_tokens", &SearchKeys::dispatch_tokens,
             {.help =
                  "exchanges of ep > tp ranks to try; 0: all-gather of all tokens; 1: all-to-all "
                  "of each token to the ranks of its experts; []: both",
              .min = 0,
              .max = 1})
        .key("microbatch", &SearchKeys::microbatch,
             {.unit = "sequences",
              .help = "sequences per microbatch and data-parallel rank to try; []: all; "
                      "Megatron-LM: --micro-batch-size",
              .min = 1,
              .aliases = {"micro_batch_size"}})
        .key("run_ahead", &SearchKeys::run_ahead,
             {.unit = "microbatches",
              .help = "1: 1F1B; 2: eager 1F1B, twice the microbatches in flight, so that "
                      "messages overlap with computation",
              .min = 1,
              .max = 2})
        .key("virtual_stages", &SearchKeys::chunks,
             {.help = "virtual stages per device to try (interleaved 1F1B); []: all that divide "
                      "a stage's layers; [1]: none",
              .min = 1,
              .aliases = {"chunks"}})
        .key("lone_ends", &SearchKeys::lone_ends,
             {.help = "allow a first stage with the embedding alone, and a last one with the head "
                      "alone; Megatron-LM: --pipeline-model-parallel-layout"})
        .key("zero_bubble", &SearchKeys::zero_bubble,
             {.help = "allow backwards in two parts, of which the second fills idle time (zero "
                      "bubble)"})
        .key("zero_levels", &SearchKeys::zero_levels,
             {.help = "ZeRO levels to try; 0: none; 1: optimizer state; 2: also gradients; 3: "
                      "also weights",
              .min = 0,
              .max = 3})
        .key("shard_within_node", &SearchKeys::shard_within_node,
             {.help = "allow ZeRO shards within a node and replicas between nodes (HSDP)"})
        .key("full_recompute", &SearchKeys::recompute,
             {.help = "allow layers with full recomputation", .aliases = {"recompute"}})
        .key("no_recompute", &SearchKeys::store,
             {.help = "allow layers without selective recomputation: they keep the outputs of "
                      "norms and activation functions",
              .aliases = {"store"}})
        .key("recompute_all", &SearchKeys::recompute_all,
             {.help = "full recomputation of every layer (conventions mist)"})
        .key("weight_offload", &SearchKeys::weight_offload,
             {.help = "shares of weights in CPU memory to try", .min = 0, .max = 1})
        .key("grad_offload", &SearchKeys::grad_offload,
             {.help = "shares of gradients in CPU memory to try", .min = 0, .max = 1})
        .key("optim_offload", &SearchKeys::optim_offload,
             {.help = "shares of optimizer state in CPU memory to try", .min = 0, .max = 1})
        .key("act_offload", &SearchKeys::act_offload,
             {.help = "shares of saved activations in CPU memory to try", .min = 0, .max = 1})
        .key("optim_disk", &SearchKeys::optim_disk,
             {.help =
                  "shares of the offloaded optimizer state on disk to try, if disk_gib is above 0",
              .min = 0,
              .max = 1})
        .key("act_disk", &SearchKeys::act_disk,
             {.help = "shares of the offloaded activations on disk to try, if disk_gib is above 0",
              .min = 0,
              .max = 1})
        .key("host_update", &SearchKeys::host_update,
             {.help = "shares of the offloaded optimizer state that the CPU updates, to try",
              .min = 0,
              .max = 1})
        .key("unequal_stages", &SearchKeys::unequal_stages,
             {.help = "allow stages with different devices, microbatch, dp, cp and tp"})
        .key("gap", &SearchKeys::gap,
             {.help = "relative gap at which the search may stop: no plan is faster by more",
              .min = 0,
              .max = 1})
        .key("time_limit_s", &SearchKeys::time_limit_s,
             {.unit = "s",
              .help = "search time limit; it returns the best plan so far, or exit code 3 if "
                      "there is none",
              .min = 0})
        .key("simulate_top", &SearchKeys::simulate_top,
             {.help = "number of plans to rank by simulation", .min = 0, .max = 1000});
  }();
  return schema;
}

namespace {

const Schema<AnalysisKeys>& analysis_schema() {
  static const auto schema = [] {
    return Schema<AnalysisKeys>()
        .key("conventions", &AnalysisKeys::conventions,
             {.help = "cost model; mist: as Mist counts, for comparisons with it",
              .choices = {"default", "mist"}})
        .key("ends", &AnalysisKeys::ends,
             {.help = "spread of embedding and head: as the last stage, or over all its devices "
                      "(conventions mist)",
              .choices = {"last_stage", "dp"}})
        .key("plain_attention", &AnalysisKeys::plain_attention,
             {.help = "attention with a stored score matrix (conventions mist)"});
  }();
  return schema;
}

const Schema<OutputKeys>& output_schema() {
  static const auto schema = [] {
    return Schema<OutputKeys>()
        .key("directory", &OutputKeys::directory, {.help = "directory of the run's files"})
        .key("checkpoints", &OutputKeys::checkpoints,
             {.help = "false: no checkpoints; the job's result is lost with it"})
        .key("checkpoint_every", &OutputKeys::checkpoint_every,
             {.unit = "steps",
              .help = "steps between checkpoints; 0: as checkpoint_minutes",
              .min = 0})
        .key("checkpoint_minutes", &OutputKeys::checkpoint_minutes,
             {.unit = "min",
              .help = "time between checkpoints; 0: use checkpoint_every; both 0: Young's "
                      "formula from measured cost and mtbf_hours, at least a minute",
              .min = 0})
        .key(
            "mtbf_hours", &OutputKeys::mtbf_hours,
            {.unit = "h", .help = "mean time between failures of the job", .min = 1e-3, .max = 1e6})
        .key("node_mtbf_hours", &OutputKeys::node_mtbf_hours,
             {.unit = "h",
              .help = "mean time between failures of a node, replaces mtbf_hours; `plan` then "
                      "predicts the cost of failures; 0: not known",
              .min = 0,
              .max = 1e9})
        .key("restart_minutes", &OutputKeys::restart_minutes,
             {.unit = "min",
              .help = "time from a failure to the next step, for the prediction",
              .min = 0,
              .max = 1e5})
        .key("keep_last", &OutputKeys::keep_last,
             {.help = "number of newest checkpoints that stay", .min = 1})
        .key("keep_every", &OutputKeys::keep_every,
             {.unit = "steps", .help = "checkpoints at multiples of this stay; 0: none", .min = 0})
        .key("keep_best", &OutputKeys::keep_best,
             {.help = "keep the checkpoint with the lowest validation loss; validates before "
                      "each checkpoint"})
        .key("log_every", &OutputKeys::log_every,
             {.unit = "steps", .help = "steps between log lines", .min = 1})
        .key("trace", &OutputKeys::trace, {.help = "write trace.json of the last step"})
        .key("tensorboard", &OutputKeys::tensorboard,
             {.help = "write TensorBoard event files to tensorboard/"});
  }();
  return schema;
}

/// Checks sizes, which only a config.json may leave to itself.
void check_sizes(const ModelKeys& model, const Document& document) {
  const std::pair<const char*, int> sizes[] = {{"num_layers", model.num_layers},
                                               {"hidden_size", model.hidden_size},
                                               {"num_heads", model.num_heads},
                                               {"seq_len", model.seq_len},
                                               {"vocab_size", model.vocab_size}};
  for (const auto& [name, size] : sizes) {
    const std::string path = std::string("model.") + name;
    const bool given = document.has(path);
    require(given || !model.config.empty(), Failure::input,
            "{}: [model] lacks '{}'. Set it, or set model.config to a Hugging Face config.json",
            document.where("model"), name);
    require(!given || size >= 1, Failure::input, "{}: '{}' must be at least 1, found 0",
            document.where(path), path);
  }
}

/// Refuses keys that only Mist's conventions know.
void check_default_conventions(const Deck& deck, const Checker& check) {
  check(!deck.search.recompute_all, "search.recompute_all",
        "is for analysis.conventions = \"mist\" only");
  check(deck.analysis.ends == "last_stage", "analysis.ends",
        "is for analysis.conventions = \"mist\" only");
  check(!deck.analysis.plain_attention, "analysis.plain_attention",
        "is for analysis.conventions = \"mist\" only");
}

/// Checks what no single key shows, and fills in what follows from other keys.
Deck resolved(Deck deck, const Document& document) {
  const Checker check(document);
  ModelKeys& model = deck.model;
  for (const auto& field : model_schema().fields()->fields)
    if (document.has("model." + field.name)) model.given.push_back(field.name);
  model.config_place = document.where("model.config");
  if (model.config.empty() && !model.weights.empty() && !document.has("model.num_layers")) {
    model.config = (std::filesystem::path(model.weights) / "config.json").string();
    model.config_place = document.where("model.weights");
  }
  check_sizes(model, document);
  if (model.config.empty()) {
    check(model.head_dim > 0 || model.hidden_size % model.num_heads == 0, "model.num_heads",
          fmt::format("must divide hidden_size = {} unless head_dim is given, found {}",
                      model.hidden_size, model.num_heads));
    if (model.ffn_size == 0) model.ffn_size = 4 * model.hidden_size;
    const bool biased = families::family(model.family).biased;
    if (!biased && !document.has("model.qkv_bias")) model.qkv_bias = false;
    if (!biased && !document.has("model.linear_bias")) model.linear_bias = false;
  }

  check_cluster(deck.cluster, document, deck.analysis.mist());
  const auto is_frozen = [](const ParameterGroupKeys& group) { return group.frozen; };
  check(!deck.analysis.mist() || std::ranges::none_of(deck.training.optimizer.groups, is_frozen),
        "analysis.conventions", "\"mist\" counts all parameters as trained: freeze none");
  check(!deck.analysis.mist() || deck.training.adapter.rank == 0, "analysis.conventions",
        "\"mist\" counts all parameters as trained: set training.adapter.rank = 0");
  check(!deck.analysis.mist() || deck.training.optimizer.name == "adamw", "analysis.conventions",
        fmt::format("\"mist\" counts AdamW's state, found training.optimizer.name = \"{}\"",
                    deck.training.optimizer.name));
  check(!deck.analysis.mist() || deck.training.optimizer.moments == "fp32", "analysis.conventions",
        "\"mist\" counts moments in fp32: set training.optimizer.moments = \"fp32\"");
  check(deck.training.optimizer.name != "muon" || deck.training.optimizer.moments != "fp8",
        "training.optimizer.moments",
        "\"fp8\" is not for training.optimizer.name = \"muon\": set \"bf16\" or \"fp32\"");
  check(deck.training.optimizer.name != "muon" ||
            std::ranges::all_of(deck.search.host_update, [](double share) { return share == 0.0; }),
        "search.host_update",
        "must be [0.0] for training.optimizer.name = \"muon\": the device updates whole matrices");
  if (deck.analysis.mist())
    check(!deck.cluster.all_groups()[0].profile.empty(), "cluster.profile",
          "must name a profile, for analysis.conventions = \"mist\"");
  else
    check_default_conventions(deck, check);

  check(deck.training.on_nonfinite != "rollback" || deck.output.checkpoints,
        "training.on_nonfinite", "rollback needs output.checkpoints");
  check(!deck.output.keep_best || !deck.data.valid.empty(), "output.keep_best",
        "needs data.valid to evaluate on");
  check(deck.training.adapter.rank > 0 || deck.training.adapter.weights.empty(),
        "training.adapter.weights",
        "needs training.adapter.rank, the r of its adapter_config.json");
  check_training(deck.training, check);
  const DataKeys& data = deck.data;
  require(
      document.has("data.train") || !data.files.empty(), Failure::input,
      "{}: table 'data': missing key 'train', the token file to train on, or 'files' for several",
      document.where("data"));
  check(data.train.empty() != data.files.empty(), "data.train",
        data.files.empty() ? "must name a file, found \"\"" : "must be left out beside data.files");
  check(data.weights.empty() || data.weights.size() == data.files.size(), "data.mixture",
        fmt::format("must be one a file, found {} for {}", data.weights.size(), data.files.size()));
  model.isolated = data.documents == "isolate";
  model.pairs = deck.training.preference.beta > 0.0;
  model.groups = deck.training.optimizer.groups;
  model.optimizer = deck.training.optimizer.name;
  model.moments = deck.training.optimizer.moments;
  model.adapter = deck.training.adapter;
  check(!deck.output.directory.empty(), "output.directory", "must name a directory, found \"\"");
  return deck;
}

/// Whether a document's text names a path that is relative.
bool names_relative(const Document& document, const std::string& key, const std::string& path) {
  return document.has(key) && !path.empty() && !document.was_set(key) &&
         std::filesystem::path(path).is_relative();
}

/// Files that describe the problem lie beside the deck.
void find_beside(Deck& deck, const Document& document) {
  const std::filesystem::path folder = std::filesystem::path(document.origin()).parent_path();
  ModelKeys& model = deck.model;
  if (names_relative(document, "model.config", model.config))
    model.config = (folder / model.config).string();
  const auto find = [&](GroupKeys& group, const std::string& key) {
    std::error_code none;
    const std::filesystem::path beside = folder / group.profile;
    if (names_relative(document, key, group.profile) &&
        std::filesystem::is_regular_file(beside, none))
      group.profile = beside.string();
  };
  find(deck.cluster, "cluster.profile");
  for (std::size_t i = 0; i < deck.cluster.groups.size(); ++i)
    find(deck.cluster.groups[i], fmt::format("cluster.groups.{}.profile", i));
}

/// What a deck says nothing about.
void set_memory_keys(Document& document, const MemoryAtHand& memory) {
  if (document.has("cluster.groups")) return;
  const ClusterKeys cluster = schema().read(document).cluster;
  const bool at_hand = cluster.profile.empty() && cluster.machine.empty();
  if (memory.device_gib <= 0.0 && (!at_hand || memory.node_gib <= 0.0)) return;
  const double device_gib =
      memory.device_gib > 0.0 ? memory.device_gib : memory.node_gib / cluster.devices_per_node;
  const auto unless_given = [&](const char* key, double gib) {
    if (gib > 0.0 && !document.has(key)) document.set(fmt::format("{}={:.6g}", key, gib));
  };
  unless_given("cluster.memory_gib", device_gib);
  unless_given("cluster.host_memory_gib", memory.node_gib);
}

/// Refuses paths that a shell would have to expand: a folder "~" would be made in their place.
/// @param all  also those that no override gives: a run's own deck is read as it was written
void refuse_shell_words(const Document& document, bool all) {
  std::vector<std::string> keys{"model.config",    "model.weights",   "training.adapter.weights",
                                "data.train",      "data.valid",      "cluster.profile",
                                "cluster.scratch", "output.directory"};
  const auto has = [&](const std::string& item) { return document.has(item); };
  for (int i = 0; has(fmt::format("data.files.{}", i)); ++i)
    keys.push_back(fmt::format("data.files.{}", i));
  for (int i = 0; has(fmt::format("cluster.groups.{}", i)); ++i)
    for (const char* path : {"profile", "scratch"})
      keys.push_back(fmt::format("cluster.groups.{}.{}", i, path));
  for (const std::string& key : keys)
    if (const auto path = document.word(key); path && (all || document.was_set(key)))
      require(!has_shell_word(*path), Failure::input,
              "{}: '{}' has a word that only a shell expands: found \"{}\", expected no ~ and no "
              "$NAME. Write the whole path",
              document.where(key), key, *path);
}

/// Applies overrides, and gives keys their present names. @return a line per key with another one
std::vector<std::string> apply(Document& document, const std::vector<std::string>& overrides) {
  std::vector<std::string> renamed = document.rename_aliases(*schema().fields());
  for (const std::string& assignment : overrides) {
    document.set(assignment);
    for (std::string& note : document.rename_aliases(*schema().fields()))
      renamed.push_back(std::move(note));
  }
  return renamed;
}

const Schema<GenerationKeys>& generation_schema() {
  static const auto schema = [] {
    return Schema<GenerationKeys>()
        .key("prompts", &GenerationKeys::prompts,
             {.help = "number of prompts", .min = 1, .max = 1e9})
        .key("prompt_tokens", &GenerationKeys::prompt_tokens,
             {.unit = "tokens",
              .help = "mean length of prompts, which have between half and one and a half times as "
                      "many; 0: a quarter of model.seq_len",
              .min = 0,
              .max = 1 << 24})
        .key("answer_tokens", &GenerationKeys::answer_tokens,
             {.unit = "tokens",
              .help = "mean length of answers, in the same way",
              .min = 0,
              .max = 1 << 24})
        .key("first_token_s", &GenerationKeys::first_token_s,
             {.unit = "s",
              .help = "longest mean time from the start of a prompt's computation to the first "
                      "token of its answer; 0: any",
              .min = 0,
              .max = 1e6})
        .key("token_s", &GenerationKeys::token_s,
             {.unit = "s",
              .help = "longest mean time between two tokens of an answer; 0: any",
              .min = 0,
              .max = 1e6});
  }();
  return schema;
}

Deck read(Document& document, const MemoryAtHand& memory, bool from_file) {
  refuse_shell_words(document, from_file);
  set_machine_keys(document);
  set_memory_keys(document, memory);
  return resolved(schema().read(document), document);
}

}  // namespace

const Schema<Deck>& schema() {
  static const auto schema = [] {
    return Schema<Deck>()
        .table("model", &Deck::model, model_schema(), "The transformer")
        .table("training", &Deck::training, training_schema(),
               "Length, precision and safety of the training")
        .table("data", &Deck::data, data_schema(), "Token files and their order")
        .table("cluster", &Deck::cluster, cluster_schema(), "The machine")
        .table("search", &Deck::search, search_schema(), "Plans to search")
        .table("generation", &Deck::generation, generation_schema(),
               "Answers that plan --for generation plans for")
        .table("analysis", &Deck::analysis, analysis_schema(), "Cost model")
        .table("output", &Deck::output, output_schema(), "Files of a run");
  }();
  return schema;
}

Deck load(const std::string& path, const std::vector<std::string>& overrides,
          const MemoryAtHand& memory) {
  Document document = Document::load(path);
  for (const std::string& note : apply(document, overrides)) log::info("{}", note);
  Deck deck = read(document, memory, true);
  find_beside(deck, document);
  return deck;
}

Deck parse(const std::string& text, const std::string& origin,
           const std::vector<std::string>& overrides, const MemoryAtHand& memory) {
  Document document = Document::parse(text, origin);
  apply(document, overrides);
  return read(document, memory, false);
}

}  // namespace brume::deck
