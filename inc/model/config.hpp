/// @file Sizes of a model, and what follows from them without a list of its parameters.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/quantization.hpp"
#include "deck/deck.hpp"
#include "families/families.hpp"
#include "model/adapter.hpp"
#include "model/layer.hpp"
#include "model/optimizers.hpp"
#include "model/precision.hpp"
#include "model/rope.hpp"

namespace brume::model {

using families::Family;
using families::family;
using families::MlpKind;
using families::NormKind;

/// Properties in which layers of a model differ.
struct LayerKind {
  bool window = false;  ///< queries see a window of the tokens before them, not all
  bool dense = false;   ///< has an MLP although others have experts

  auto operator<=>(const LayerKind&) const = default;
};

/// The way from a router's logits to a token's gates.
enum class RouterKind { softmax, sigmoid };

struct Parameter;

/// Sizes of generation, whose passes compute some tokens of each of many sequences.
struct Generation {
  int tokens = 0;         ///< length of a pass; 0: training, whose passes compute whole sequences
  int sequences = 0;      ///< most sequences at once; logits are made of a pass's first tokens,
                          ///< at most one a sequence
  int blocks = 0;         ///< number in each layer's key cache
  int block_tokens = 64;  ///< tokens of a block

  bool operator==(const Generation&) const = default;
};

/// The epsilon of latent attention's own norms, whatever that of the others is.
inline constexpr double latent_norm_eps = 1e-6;

/// Sizes of a model, all per whole model (not per rank).
struct Config {
  const Family* family = &families::family("gpt");  ///< never null
  int num_layers = 0;
  int hidden_size = 0;   ///< C
  int num_heads = 0;     ///< H
  int num_kv_heads = 0;  ///< K, shared by groups of H / K query heads; 0: H
  int head_size = 0;     ///< D; 0: C / H
  // Latent attention: keys and values are made from fewer features than all heads have.
  int kv_lora_rank = 0;            ///< features that keys and values are made from; 0: the stream's
  int q_lora_rank = 0;             ///< features that queries are made from; 0: the stream's
  int v_head_size = 0;             ///< features of a head's value; 0: D
  int ffn_size = 0;                ///< F
  int num_experts = 0;             ///< E, in place of a layer's MLP; 0: none
  int first_dense_layers = 0;      ///< ... but for so many first layers
  int experts_per_token = 0;       ///< k
  int expert_ffn_size = 0;         ///< I
  int shared_expert_ffn_size = 0;  ///< inner width; 0: no expert that every token passes
  bool shared_expert_gate = false;  ///< its output is multiplied by sigmoid(x . w)
  RouterKind router = RouterKind::softmax;
  bool normalize_topk = true;  ///< gates are the softmax of the chosen logits; else that of all
  double routed_scale = 1.0;   ///< factor of gates
  int expert_groups = 1;       ///< groups of neighbouring experts
  int groups_per_token = 1;    ///< groups that have a token's experts
  /// Change of a correction of the choice after each step, by the experts' loads; 0: none.
  double balance_rate = 0.0;
  double balance_loss = 0.0;  ///< factors of losses that keep the experts' loads even
  double z_loss = 0.0;
  double rank_load_factor = 1.0;  ///< expected: largest load of a rank's experts over the mean
  int seq_len = 0;                ///< T [tokens]
  int padding = 0;                ///< tokens after each sequence that are computed, not learned
  int vocab_size = 0;             ///< V
  bool tied_head = true;
  bool qkv_bias = true;
  bool linear_bias = true;     ///< bias of the other linear layers
  int layer_norms = 2;         ///< norms of a layer; falcon's attention and MLP may share one
  bool qk_norm = false;        ///< RMS norms of queries and keys, each head alone, before positions
  bool qk_norm_joint = false;  ///< ... instead all heads together
  bool parallel_residual = true;  ///< neox: attention beside MLP
  double norm_eps = 1e-5;
  double rope_theta = 10000.0;
  int rotary_size = 0;  ///< R, features of a head that positions turn; 0: D
  RopeScaling rope_scaling = {};
  int window = 0;  ///< W, keys that a query of a windowed layer sees, its own included; 0: all
  std::vector<bool> windows = {};  ///< whether layers have it, repeated; none: all do
  double window_rope_theta = 0.0;  ///< windowed layers, without scaling; 0: as the others
  double query_scalar = 0.0;       ///< scores are divided by its root; 0: D
  double attention_cap = 0.0;      ///< c, scores become c tanh(score / c); 0: they stay
  double logits_cap = 0.0;         ///< the same of logits
  double init_std = 0.02;
  bool isolated = false;        ///< a token sees its document only, and positions begin with it
  bool pairs = false;           ///< samples are pairs of answers, each with a loss of its own
  double document_share = 1.0;  ///< pairs of a query and a key before it in one document, of all
  int frozen_blocks = 0;        ///< number of first blocks() without gradient, state or backward
  /// Parameters of other blocks, in rising order, without gradient and state of their own.
  std::vector<std::string> frozen_parameters = {};
  int head_tokens = 1024;  ///< most tokens of a microbatch whose logits exist at once
  /// Tensor-parallel ranks exchange a layer's normed input there and back, as tests ask.
  bool exchanges_normed = false;
  Adapter adapter = {};
  Generation generation = {};
  Precision precision = Precision::fp32;
  Quantization quantization = Quantization::none;  ///< format of layers' frozen matrices
  const OptimizerRow* optimizer = &adamw;          ///< outlives the Config
  Moments moments = Moments::fp32;                 ///< format of its state, but for master weights

  bool operator==(const Config&) const = default;

  int head_dim() const { return head_size > 0 ? head_size : hidden_size / num_heads; }
  int kv_heads() const { return num_kv_heads > 0 ? num_kv_heads : num_heads; }
  int attention_size() const { return num_heads * head_dim(); }  ///< H D, of all query heads
  bool latent() const { return kv_lora_rank > 0; }
  int v_head_dim() const { return v_head_size > 0 ? v_head_size : head_dim(); }
  int value_size() const { return num_heads * v_head_dim(); }  ///< features of all attended heads
  /// Whether generation keeps latent features in place of keys and values: not where these are made
  /// by more than one stored matrix.
  bool keeps_latents() const;
  /// Features of a head's key that positions do not turn.
  int still_dim() const { return head_dim() - rotary_dim(); }
  bool rotary() const { return family->rotary; }
  /// A window that is as long as a sequence hides nothing, but its layers may turn by other angles.
  bool windowed() const { return window > 0 && (window < seq_len || window_rope_theta > 0.0); }
  /// Whether a block has a backward, because it or a block below it is trained.
  bool has_backward(int block) const { return block >= frozen_blocks; }
  /// Whether all layers have one: every stage of a pipeline has a layer.
  bool has_all_backwards() const { return frozen_blocks <= 1; }
  /// Whether the embedding's token table is trained, to whose gradient a tied head adds.
  bool trains_table() const {
    return frozen_blocks == 0 && !std::ranges::binary_search(frozen_parameters, "embedding.token");
  }
  LayerKind layer_kind(int layer) const {
    return {.window = windowed() && has_window(layer), .dense = layer < first_dense_layers};
  }
  bool has_window(int layer) const {
    return windows.empty() || windows[std::size_t(layer) % windows.size()];
  }
  bool generates() const { return generation.tokens > 0; }
  int padded_len() const { return seq_len + padding; }
  /// Tokens of a sequence that a pass computes: all, or in generation those of a pass.
  int computed_tokens() const { return generates() ? generation.tokens : padded_len(); }
  /// Most blocks of the key cache that a sequence takes.
  int blocks_per_sequence() const {
    return (seq_len + generation.block_tokens - 1) / generation.block_tokens;
  }
  int rotary_dim() const { return rotary_size > 0 ? rotary_size : head_dim(); }
  bool parallel() const {
    using families::ParallelBlock;
    return family->parallel == ParallelBlock::always ||
           (family->parallel == ParallelBlock::by_choice && parallel_residual);
  }
  NormKind norm() const { return family->norm; }
  float gain_base() const { return family->gain_base; }
  /// Norms of the tensors that attention and MLP add to the stream.
  bool post_norms() const { return family->post_norms; }
  float embedding_scale() const;
  float score_scale() const;  ///< 1 / sqrt(query_scalar), times yarn's factor in latent attention
  MlpKind mlp() const { return family->mlp; }
  bool gated() const { return families::is_gated(mlp()); }
  bool sinks() const { return family->sinks; }
  /// The kind of most layers' second segment, or of the only one.
  SegmentKind inner_kind() const {
    if (num_experts > 0) return SegmentKind::experts;
    return parallel() ? SegmentKind::parallel : SegmentKind::mlp;
  }
  /// Inner width of an MLP, or of each of a layer's experts.
  int inner_size(SegmentKind kind) const {
    return kind == SegmentKind::experts ? expert_ffn_size : ffn_size;
  }
  int inner_size() const { return inner_size(inner_kind()); }
  /// Width of what the first product makes: where it is gated, gate and value side by side.
  int mlp_in_size(SegmentKind kind) const {
    return gated() ? 2 * inner_size(kind) : inner_size(kind);
  }
  /// Whether a segment's kernels ask where documents begin.
  bool reads_documents(SegmentKind kind) const;
};

/// @param keys       of a deck without `config`, or what `resolved` made of them
/// @param precision  training.precision of the deck
/// @throws Error(input) when sizes do not fit each other or the family
Config config(const deck::ModelKeys& keys, std::string_view precision);

/// The model as generation computes it: nothing is trained, and positions follow each sequence.
Config generating(Config config, const Generation& sizes);

/// The keys with those of their config.json filled in, `config` itself empty then. Keys that the
/// deck gave win. Keys of the file that mean nothing here are warned about once.
///
/// @throws Error(input) for an architecture or feature that does not run here, naming it
deck::ModelKeys resolved(const deck::ModelKeys& keys);

/// One line with all that decides what is computed: what a checkpoint must agree with.
std::string text(const Config& config);

/// Angle per token of each pair of features (i, i + R/2), [R / 2].
///
///   f_i = theta^(-2 i / R);  linear: f_i / factor;  llama3: as linear where f_i makes fewer than
///   low_freq_factor turns in original_seq_len, f_i where more than high_freq_factor, between them
///   mixed linearly in the turns;  yarn: as linear from the pair with beta_slow turns on, f_i up to
///   the pair with beta_fast turns, between them mixed linearly in i
///
/// @source  Su et al. 2021, eq. (15); Chen et al. 2023; Llama 3 model card, reference code; Peng et
///          al. 2023 (YaRN), eq. (18) to (22), as Transformers 5 computes it
std::vector<double> rope_frequencies(const Config& config, LayerKind kind = {});
/// The factor of cosines and sines of a layer of this kind.
double rope_magnitude(const Config& config, LayerKind kind = {});

/// The linear layers of a layer that may have an adapter, cut as the family's files cut them: a
/// fused product has several of them, for example queries, keys and values.
std::vector<Module> adapter_targets(const Config& config);
/// The modules of experts that may have an adapter too, if a deck names them.
std::vector<Module> expert_targets(const Config& config);

/// The modules that may be trained whole besides an adapter: tables and norms, in the order of
/// blocks.
std::vector<Module> modules_to_save(const Config& config);

/// Freezes the parameters for which `frozen` holds, on top of those that are.
/// @return false if no parameter is left to train
bool freeze(Config& config, const std::function<bool(const Parameter&)>& frozen);

/// Kind of rows of profiles for making factors of the model's quantized blocks.
std::string dequantize_kind(const Config& config);

/// The kinds of layers that a model has, with the number of each.
std::vector<std::pair<LayerKind, int>> layer_counts(const Config& config);

}  // namespace brume::model
