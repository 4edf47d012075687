/// @file The transformer as data: blocks, parameters, operators and what they save, as expressions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/quantization.hpp"
#include "deck/deck.hpp"
#include "families/families.hpp"
#include "model/axes.hpp"
#include "model/layer.hpp"
#include "model/optimizers.hpp"
#include "model/precision.hpp"
#include "symbolic/expr.hpp"

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

/// How rotary angles are stretched for sequences longer than those of an earlier training.
struct RopeScaling {
  enum class Kind { none, linear, llama3, yarn };
  Kind kind = Kind::none;
  double factor = 1.0;            ///< linear: of all frequencies; llama3, yarn: of the low ones
  double low_freq_factor = 1.0;   ///< llama3: turns within original_seq_len below which a frequency
  double high_freq_factor = 4.0;  ///< is divided whole, above which it is left alone
  int original_seq_len = 8192;
  double beta_fast = 32.0;        ///< yarn: turns above which a frequency is left alone
  double beta_slow = 1.0;         ///< and below which it is divided
  bool truncate = true;           ///< yarn: both ends of that range are whole numbers of pairs
  double attention_factor = 0.0;  ///< yarn: of cosines and sines; 0: by the numbers below
  double mscale = 0.0, mscale_all_dim = 0.0;  ///< yarn; 0: not given

  /// Factor of cosines and sines, 1 but for yarn:
  ///
  ///   attention_factor, or m(mscale) / m(mscale_all_dim) where both are given, or m(1), with
  ///   m(s) = 1 + 0.1 s ln(factor)
  double magnitude() const;
  double latent_score_factor() const;  ///< m(mscale_all_dim)^2
};

/// Trained terms of low rank, added to frozen linear layers: y = W x + scale B A x.
///
/// @source  Hu et al. 2021
struct Adapter {
  struct Target {
    Module module;
    int rank;  ///< r
    double alpha;

    bool operator==(const Target&) const = default;
  };
  std::vector<Target> targets = {};  ///< linear layers of adapter_targets(), then expert_targets()
  bool rslora = false;
  /// The layers with a term, in rising order; none: all. In other layers it stays zero.
  std::vector<int> layers = {};
  std::vector<Module> saved = {};  ///< trained whole: some of modules_to_save()

  bool exists() const { return !targets.empty(); }
  /// Each expert has factors of its own, which are where the expert is.
  bool is_of_experts() const { return find(Module::experts_in) || find(Module::experts_out); }
  /// @return null if the module has no term
  const Target* find(Module module) const {
    const auto found = std::ranges::find(targets, module, &Target::module);
    return found == targets.end() ? nullptr : &*found;
  }
  bool is_in(int layer) const {
    return layers.empty() || std::ranges::binary_search(layers, layer);
  }
  bool saves(Module module) const { return std::ranges::count(saved, module) > 0; }
  /// alpha / r, or with rslora alpha / sqrt(r) (Kalajdzievski 2023)
  double scale(const Target& target) const {
    return target.alpha / (rslora ? std::sqrt(target.rank) : target.rank);
  }
};

/// Sizes of generation, whose passes compute some tokens of each of many sequences.
struct Generation {
  int tokens = 0;         ///< length of a pass; 0: training, whose passes compute whole sequences
  int sequences = 0;      ///< most sequences at once; logits are made of a pass's first tokens,
                          ///< at most one a sequence
  int blocks = 0;         ///< number in each layer's key cache
  int block_tokens = 64;  ///< tokens of a block
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
  /// Tokens of a sequence that a pass computes: all, or in generation those of a pass.
  int computed_tokens() const { return generates() ? generation.tokens : seq_len; }
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

// --- parameters ---------------------------------------------------------------------------------

enum class Init { zeros, ones, normal, uniform };

/// One parameter tensor of the whole model.
struct Parameter {
  ParameterId id;
  std::string name = {};            ///< "layers.3.attention.qkv.weight"
  std::vector<std::int64_t> shape;  ///< global
  int split_dim = -1;   ///< dimension that tensor parallelism cuts, see cut(); -1: every tp rank
                        ///< holds all
  int split_heads = 0;  ///< along split_dim, kept whole; every tp rank holds all that tp does not
                        ///< divide. 0: any tp
  int expert_dim = -1;  ///< dimension that expert parallelism cuts in place of split_dim
  bool tp_partial = false;  ///< each tp rank's gradient is a part of the sum
  bool decays = false;      ///< weight decay applies
  Init init = Init::zeros;
  double std = 0.0;       ///< standard deviation of a random initialisation, of mean 0
  bool frozen = false;    ///< not trained
  bool balanced = false;  ///< ... but steps move it by the experts' loads
  bool in_fp32 = false;   ///< kept in fp32 in every precision; never trained
  Quantization quantization = Quantization::none;  ///< format of its rows
  /// Elements of flat buffers that a quantized block takes, or a value that is not quantized.
  int block_elements = 1;
  /// matrix: an update works on each matrix of the last two dimensions of `shape` alone
  UpdateUnit unit = UpdateUnit::element;
  bool blocked_moments = false;  ///< its moments are quantized: blocks of consecutive elements
  std::int64_t first_index = 0;  ///< global index of its first element, for initial values

  std::int64_t elements() const;
  int block_values() const { return quantization == Quantization::none ? 1 : quantized_block; }
  /// Elements of flat buffers in which `values` of it are stored: whole blocks if it is quantized.
  std::int64_t stored_elements(std::int64_t values) const {
    return values / block_values() * block_elements;
  }
  /// Values that `elements` of flat buffers hold.
  std::int64_t stored_values(std::int64_t elements) const {
    return elements / block_elements * block_values();
  }
  bool splits(int tp) const {
    return split_dim >= 0 && (split_heads == 0 || split_heads % tp == 0);
  }
  int cut_dim(int ep) const { return ep > 1 && expert_dim >= 0 ? expert_dim : split_dim; }
  bool is_partial(int tp) const { return tp_partial || (split_dim >= 0 && !splits(tp)); }
  /// Whether tensor-parallel ranks have parts of the same matrices.
  bool cuts_matrices(int tp, int ep) const {
    return tp > 1 && splits(tp) && cut_dim(ep) + 2 >= int(shape.size());
  }
};

/// Part `index` when something of `extent` is cut into parts of ceil(extent / parts), of which the
/// last may be smaller or empty. So are tensors and vocabularies cut over tensor-parallel ranks.
struct Cut {
  std::int64_t first, count;
};
Cut cut(std::int64_t extent, int parts, int index);

/// A parameter's piece on one tp rank, and where it lies in the block's flat buffers.
struct Piece {
  int parameter;                     ///< index into Block::parameters
  std::vector<std::int64_t> shape;   ///< local
  std::vector<std::int64_t> offset;  ///< offset of the piece in the global tensor
  std::int64_t first;                ///< first element in the flat block
  std::int64_t elements;             ///< number in the flat block
};

enum class BlockKind { embedding, layer, head };

/// The unit of placement, sharding, prefetch and update: the embedding, one layer, or the head.
struct Block {
  BlockKind kind;
  int layer = -1;    ///< layer index, for a layer
  std::string name;  ///< "embedding", "layers.3", "head"
  std::vector<Parameter> parameters;

  bool trains() const { return !std::ranges::all_of(parameters, &Parameter::frozen); }
  /// Axes along which ranks hold the same weights and compute with different tokens. Gradients are
  /// summed over their group, and ZeRO shards state over it.
  AxisSet reduction_axes() const { return state_axes; }
};

/// All blocks of a model: embedding, layers in order, head. A tied head has no token table of its
/// own.
std::vector<Block> blocks(const Config& config);

/// The layer whose gradients and optimizer state have most bytes: closed forms take it for every
/// layer that has a backward.
///
/// @param dense  of the layers without experts where others have them, else of the others
const Block& most_trained_layer(const Config& config, const std::vector<Block>& blocks,
                                bool dense = false);

/// Whether all layers train the same parameters: else closed forms, which take a layer for all, are
/// not exact.
bool trains_layers_alike(const Config& config);
/// ... and all have the same parameters.
inline bool are_layers_alike(const Config& config) {
  return config.first_dense_layers == 0 && trains_layers_alike(config);
}

/// Whether a pattern of a group of parameters fits one's name: * ? [] as a shell has them for
/// files.
bool fits(const std::string& pattern, const std::string& name);

/// Numbers of fp32 in a cache line: at multiples of it pieces of a block begin and ranges are cut.
inline constexpr std::int64_t alignment_elements = 16;
/// The same of a block's trained and frozen elements, which also cut between quantized blocks.
std::int64_t trained_alignment(const Block& block);
std::int64_t frozen_alignment(const Block& block);
/// Says why tp cannot cut the model's quantized weights and moments: "tp = 4 must ..."; empty if it
/// can. With ep > 1 it cuts no expert.
std::string quantization_fault(const Config& config, int tp, int ep = 1);

/// The flat buffer of a block on one tp rank: what is trained, which alone has gradients and
/// optimizer state, and behind it what is frozen. Partial gradients come first, so that one small
/// all-reduce covers them, and experts last, before which an all-reduce over Axis::ep ends; each
/// piece starts at a multiple of trained_alignment or frozen_alignment, both parts are multiples of
/// `shards` times that so that ZeRO can cut them into equal aligned shards. Where tp cuts unevenly
/// each rank has room for the first one's piece, the largest: all ranks' layouts are alike. As far
/// as that leaves room, whole matrices of an update and blocked moments come last.
struct Layout {
  std::vector<Piece> pieces;         ///< pieces in flat order
  std::int64_t partial_elements;     ///< leading elements whose gradients are partial over tp
  std::int64_t dense_elements;       ///< leading ones, behind which all are of experts
  std::int64_t full_state_elements;  ///< leading ones, behind which all have less state: of whole
                                     ///< matrices or in blocks
  std::int64_t trained_elements;     ///< leading elements, padding included
  std::int64_t elements;             ///< all, padding included

  /// The piece of the parameter whose name ends in `suffix`. @throws Error(bug)
  const Piece& piece(const Block& block, std::string_view suffix) const;
};
/// The ranks over which whole experts are divided; of one, tp cuts each expert.
struct ExpertRanks {
  int count = 1;
  int rank = 0;  ///< this one
};
Layout layout(const Block& block, int tp, int tp_rank, int shards, ExpertRanks experts = {});

/// Elements of both parts of the flat buffer as expressions in "tp", "ep", "dp" and "cp", of which
/// dp cp / expert_data_ranks() are the shards, Layout::dense_elements and
/// Layout::full_state_elements.
struct LayoutElements {
  Expr trained, frozen, dense, full_state;
};
LayoutElements layout_elements(const Config& config, const Block& block);
/// The leading elements of it whose gradients are partial over tp, in variable "tp".
Expr layout_partial_elements(const Block& block);

/// The matrices [R, C] of a parameter, one after another.
struct Matrices {
  std::int64_t count, rows, columns;

  std::int64_t elements() const { return rows * columns; }  ///< elements of each
};
/// @param shape  of the parameter, or of its piece on a rank
Matrices matrices(const std::vector<std::int64_t>& shape);

/// Memory for the update of a block's largest matrix; none where no matrix is trained.
///
///   with m <= n: a sum of squares, two of [m, n] and two of [m, m] in the precision of weights
struct MatrixWorkspace {
  std::int64_t squares_bytes = 0, matrix_bytes = 0, gram_bytes = 0;

  std::int64_t bytes() const { return squares_bytes + 2 * (matrix_bytes + gram_bytes); }
};
MatrixWorkspace matrix_workspace(const Config& config, const Block& block);

/// The elements from the first matrix on of which tensor-parallel ranks have parts, to the last one
/// of them.
std::pair<std::int64_t, std::int64_t> cut_matrices(const Block& block, const Layout& layout, int tp,
                                                   int ep);

/// Elements of the token table on one tp rank, in "tp": ceil(V / tp) C.
Expr token_table_elements(const Config& config);

// --- segments -----------------------------------------------------------------------------------
// A segment maps the residual stream [N, C] to the next one; with tp > 1 each tp rank computes a
// part of the sum, of which a reduce-scatter leaves each a shard of the tokens, and an all-gather
// of shards comes before the next segment. Its backward maps d output to d input alike. The
// embedding makes the first stream so, the head the first d output; of the vocabulary each tp rank
// has its rows, and the head's logits meet in a few numbers a token. A layer is two segments,
// attention or window and mlp or experts, or the one segment `parallel`, whose branches read the
// same input.

/// Recomputation of a layer in its backward.
enum class Recompute {
  none,       ///< nothing
  selective,  ///< cheap outputs of norms and of the MLP's activation function, which no product and
              ///< no attention makes
  full        ///< all but the layer's input
};
inline constexpr Recompute all_recomputes[] = {Recompute::none, Recompute::selective,
                                               Recompute::full};

/// The head's are those of one piece, see head_pieces().
///
/// @param division  Split::division(). Ranks along cp exchange heads of tokens before attention and
///                  behind it, or gather keys. Ranks that sum a layer's segment norm their own
///                  tokens before a gather of all.
Segment segment(const Config& config, SegmentKind kind, Division division = {});

/// Pieces of a microbatch's tokens in which the head works, as equal as they can be with at most
/// Config::head_tokens each: ceil(N / count) tokens but for the last. In "b" and "cp".
struct HeadPieces {
  Expr tokens, count;
};
HeadPieces head_pieces(const Config& config);

/// Segments of a block in forward order: one, or two for a layer whose branches are not parallel.
std::vector<SegmentKind> segment_kinds(const Config& config, BlockKind kind, LayerKind layer = {});
/// All kinds of segments that a model has, in forward order.
std::vector<SegmentKind> segment_kinds(const Config& config);

/// A tensor of a layer that is kept from forward to backward: a segment's input, or one it saved.
struct Kept {
  SegmentKind segment;
  int saved;  ///< index into Segment::saved; -1: the segment's input
  Expr bytes;
};

/// Saved tensors of a layer, in the order of activation offload, large ones first: with ratio a,
/// the longest prefix with at most a of all bytes moves to CPU memory. A layer with full
/// recomputation keeps its input.
std::vector<Kept> kept_tensors(const Config& config, Recompute recompute, LayerKind layer = {},
                               Division division = {});

/// Bytes of a layer's key cache on a rank, in "tp": keys and values of all its blocks' tokens.
Expr cache_bytes(const Config& config);

/// Elements of the residual stream on a rank, b T C / cp.
Expr stream_elements(const Config& config);
Expr stream_bytes(const Config& config);
/// Bytes of the stream that a segment works on: experts have the tokens of all ranks that divide
/// them.
Expr stream_bytes(const Config& config, SegmentKind kind);
/// Split::expert_data_ranks() in "tp" and "ep"; 1 for a model without experts.
Expr expert_data_ranks(const Config& config);

/// Ranks that hold a token's experts, in the mean if loads are even: of R ranks
///
///   R (1 - C(E - E / R, k) / C(E, k))
Expr ranks_of_token(const Config& config);
/// Bytes of the stream that a tensor-parallel rank holds between segments: those of b T / (cp tp)
/// tokens.
Expr stream_shard_bytes(const Config& config);

std::int64_t num_parameters(const Config& config);
/// Parameters that a token meets: of the experts only those that it chooses.
std::int64_t num_active_parameters(const Config& config);
/// Values that are kept in quantized blocks.
std::int64_t num_quantized(const Config& config);
/// Trained parameters whose moments are in blocks.
std::int64_t num_blocked_moments(const Config& config);
/// Names of the parameters that no step changes.
std::set<std::string> frozen_names(const Config& config);
/// How many parameters are frozen, and what that saves; empty where all are trained.
std::string frozen_text(const Config& config);
/// Model FLOPs of one sequence: three times those of the forward's matrix products and of the half
/// of attention's scores that causality leaves; of blocks without a backward only the forward's, of
/// frozen weights not those of their gradients. Recomputation and passes over memory do not count.
double flops_per_sequence(const Config& config);

/// Initial value of a parameter element, by its place in the whole model: the same under every
/// plan. Normal values by Box-Muller over a counter-based generator.
float initial_value(const Parameter& parameter, std::int64_t element, std::uint64_t seed);

}  // namespace brume::model
