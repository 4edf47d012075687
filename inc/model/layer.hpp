/// @file The inside of a segment: operators, the tensors between them, and all that follows from
/// that list: saved tensors, the backward, scratch.
#pragma once

#include <array>
#include <compare>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/axes.hpp"
#include "symbolic/expr.hpp"

namespace brume::model {

using symbolic::Expr;

/// A linear layer, a norm or a table of a block.
enum class Module {
  token,
  position,
  norm1,
  norm2,
  post_norm1,
  post_norm2,
  q_norm,
  k_norm,
  sinks,  ///< a vector, one more score of each query of a head in the softmax
  qkv,
  q,
  kv,
  k,  ///< has an adapter's factors only, like v, gate and up
  v,
  q_down,  ///< makes the features that queries come from
  q_down_norm,
  kv_down,  ///< makes the features that keys and values come from
  kv_down_norm,
  kv_up,     ///< makes each head's key without positions, and its value
  k_turned,  ///< the part of a key that positions turn, one for all heads
  attention_out,
  mlp_in,
  mlp_gate,
  mlp_up,
  mlp_out,
  router,
  experts_in,  ///< all experts' first products, one after another
  experts_out,
  shared_in,    ///< gate and up of the expert that every token passes
  shared_gate,  ///< has an adapter's factors only, like shared_up
  shared_up,
  shared_out,
  shared_expert_gate,  ///< a vector, whose product with a token gives the factor of its output
  head_norm,
  head
};
inline constexpr int num_modules = int(Module::head) + 1;

/// A parameter of a module.
enum class Part {
  weight,  ///< or gain, or table
  bias,
  correction,  ///< a router's, added to scores for the choice of experts
  lora_a,      ///< an adapter's first factor [rank, inputs]
  lora_b       ///< ... and its second one [outputs, rank]
};
inline constexpr int num_parts = int(Part::lora_b) + 1;

struct ParameterId {
  Module module;
  Part part = Part::weight;

  bool is_adapter() const { return part == Part::lora_a || part == Part::lora_b; }
  /// Whether each routed expert has a part of its own.
  bool is_of_experts() const {
    return module == Module::experts_in || module == Module::experts_out;
  }
  bool operator==(const ParameterId&) const = default;
};
/// Name within a block: "attention.qkv.weight".
std::string name(ParameterId id);
/// Name of a module, the same in each layer: "attention.q", "embedding.token".
std::string module_name(Module module);

// --- kernels ------------------------------------------------------------------------------------

/// Identity of a kernel: kind and dims name a row of measured times.
enum class OperatorKind {
  matmul,
  matmul_fp8,
  experts,  ///< a product of each expert's rows with its own matrix
  attention,
  cached_attention,  ///< attention to kept keys and values of earlier tokens too
  layer_norm,
  rms_norm,
  rope,
  gelu,
  gelu_erf,
  swiglu,
  geglu,
  clamped_swiglu,
  pointwise,
  embedding,
  cross_entropy,
  logits,  ///< a product with sums in fp32, which are the result
  router,  ///< a product with sums in fp32
  choose_experts,
  order_copies,    ///< rows of the copies of all ranks' tokens, by the choices of these ranks
  sigmoid,         ///< gates of rows
  dispatch,        ///< a row for each expert of a token
  combine,         ///< the sum of such rows
  cut_heads,       ///< columns of heads in as many parts as ranks share a sequence
  join_heads,      ///< such parts side by side
  cut_keys,        ///< columns of keys and values
  expand_keys,     ///< queries, keys and values of heads from the products of latent attention,
                   ///< or keys and values alone
  narrow_values,   ///< attended heads without the columns that widened their values
  absorb_queries,  ///< queries that see latent keys, and these: in generation
  expand_values,   ///< values of attended latent features
  residual,        ///< adds the stream to this rank's rows of sums
  reduce_scatter,  ///< exchange: the sum over ranks, cut by rows
  all_gather,      ///< exchange: the rows of all ranks, in rank order
  all_to_all,      ///< exchange: rows, cut into as many parts as ranks, part i for rank i
  send_rows,       ///< exchange: rows of tokens, to the ranks of their experts
  return_rows,     ///< exchange: the way back
  dequantize,      ///< a product's factor from blocks, before the product
  update           ///< update of weights by the model's optimizer
};

/// A tensor of an operator's forward that its backward reads.
enum class Need { none, read, written, statistics };

/// Properties of a kernel that hold for each of its operators.
struct KernelRule {
  OperatorKind kind;
  const char* name;
  bool cheap;            ///< a backward makes its output again, unless that is kept
  double weights_share;  ///< share of the backward that makes gradients of
                         ///< linear layers; the rest is its input part
  double forward_accesses, backward_accesses;  ///< memory accesses per element
  std::array<Need, 3> needed;                  ///< the weights part needs them if it exists

  constexpr bool needs(Need what) const {
    return needed[0] == what || needed[1] == what || needed[2] == what;
  }
};

/// A row per kind, ordered as they are.
inline constexpr KernelRule kernel_rules[] = {
    {OperatorKind::matmul, "matmul", false, 0.5, 0, 0, {Need::read}},
    {OperatorKind::matmul_fp8, "matmul_fp8", false, 0.5, 0, 0, {Need::read}},
    {OperatorKind::experts, "experts", false, 0.5, 0, 0, {Need::read}},
    {OperatorKind::attention,
     "attention",
     false,
     0.0,
     0,
     0,
     {Need::read, Need::written, Need::statistics}},
    {OperatorKind::cached_attention, "cached_attention", false, 0.0, 0, 0, {}},
    {OperatorKind::layer_norm, "layer_norm", true, 0.0, 2, 5, {Need::statistics, Need::read}},
    {OperatorKind::rms_norm, "rms_norm", true, 0.0, 2, 5, {Need::statistics, Need::read}},
    {OperatorKind::rope, "rope", false, 0.0, 2, 2, {}},
    {OperatorKind::gelu, "gelu", true, 0.0, 2, 5, {Need::read}},
    {OperatorKind::gelu_erf, "gelu_erf", true, 0.0, 2, 5, {Need::read}},
    {OperatorKind::swiglu, "swiglu", true, 0.0, 2, 5, {Need::read}},
    {OperatorKind::geglu, "geglu", true, 0.0, 2, 5, {Need::read}},
    {OperatorKind::clamped_swiglu, "clamped_swiglu", true, 0.0, 2, 5, {Need::read}},
    {OperatorKind::pointwise, "pointwise", false, 1.0, 2, 1, {}},
    {OperatorKind::embedding, "embedding", false, 0.0, 3, 5, {}},
    {OperatorKind::cross_entropy,
     "cross_entropy",
     false,
     0.0,
     3,
     0,
     {Need::written, Need::statistics}},
    {OperatorKind::logits, "logits", false, 0.0, 0, 0, {}},
    {OperatorKind::router, "router", false, 0.0, 0, 0, {Need::read}},
    {OperatorKind::choose_experts,
     "choose_experts",
     false,
     0.0,
     2,
     3,
     {Need::read, Need::statistics}},
    {OperatorKind::order_copies, "order_copies", false, 0.0, 2, 1, {Need::statistics}},
    {OperatorKind::sigmoid, "sigmoid", false, 0.0, 2, 3, {Need::read}},
    {OperatorKind::dispatch, "dispatch", true, 0.0, 2, 2, {}},
    {OperatorKind::combine, "combine", false, 0.0, 2, 2, {}},
    {OperatorKind::cut_heads, "cut_heads", false, 0.0, 2, 2, {}},
    {OperatorKind::join_heads, "join_heads", false, 0.0, 2, 2, {}},
    {OperatorKind::cut_keys, "cut_keys", true, 0.0, 2, 2, {}},
    {OperatorKind::expand_keys, "expand_keys", false, 0.0, 2, 2, {}},
    {OperatorKind::narrow_values, "narrow_values", true, 0.0, 2, 2, {}},
    {OperatorKind::absorb_queries, "absorb_queries", false, 0.0, 0, 0, {}},
    {OperatorKind::expand_values, "expand_values", false, 0.0, 0, 0, {}},
    {OperatorKind::residual, "residual", false, 0.0, 3, 0, {}},
    {OperatorKind::reduce_scatter, "reduce_scatter", false, 0.0, 0, 0, {}},
    {OperatorKind::all_gather, "all_gather", true, 0.0, 0, 0, {}},
    {OperatorKind::all_to_all, "all_to_all", false, 0.0, 0, 0, {}},
    {OperatorKind::send_rows, "send_rows", true, 0.0, 0, 0, {}},
    {OperatorKind::return_rows, "return_rows", false, 0.0, 0, 0, {}},
    {OperatorKind::dequantize, "dequantize", false, 0.0, 0, 0, {}},
    {OperatorKind::update, "update", false, 0.0, 0, 0, {}},
};

/// Whether each row of a table stands where its key says.
template <class Rows, class Key>
consteval bool in_order(const Rows& rows, Key key) {
  for (std::size_t i = 0; i < std::size(rows); ++i)
    if (std::size_t(rows[i].*key) != i) return false;
  return true;
}
static_assert(in_order(kernel_rules, &KernelRule::kind));

constexpr const KernelRule& rule(OperatorKind kind) { return kernel_rules[std::size_t(kind)]; }
/// An update has the name of its optimizer instead, dequantize that of the format, too.
constexpr const char* name(OperatorKind kind) { return rule(kind).name; }
/// A bias or a residual belongs to a product: it has a price, but no kernel call of its own.
inline bool is_epilogue(OperatorKind kind) { return kind == OperatorKind::pointwise; }
inline bool is_norm(OperatorKind kind) {
  return kind == OperatorKind::layer_norm || kind == OperatorKind::rms_norm;
}
inline bool is_product(OperatorKind kind) {
  return kind == OperatorKind::matmul || kind == OperatorKind::matmul_fp8 ||
         kind == OperatorKind::experts;
}
/// A product of each head with its part of latent attention's kv_up.
inline bool is_latent_product(OperatorKind kind) {
  return kind == OperatorKind::absorb_queries || kind == OperatorKind::expand_values;
}
/// A product whose sums are kept in fp32.
inline bool makes_logits(OperatorKind kind) {
  return kind == OperatorKind::router || kind == OperatorKind::logits;
}

/// Whether ranks exchange rows of tokens with the ranks of their experts.
inline bool is_of_tokens(OperatorKind kind) {
  return kind == OperatorKind::send_rows || kind == OperatorKind::return_rows;
}
/// An exchange has no kernel: ranks of a group exchange a tensor.
inline bool is_exchange(OperatorKind kind) {
  return kind == OperatorKind::reduce_scatter || kind == OperatorKind::all_gather ||
         kind == OperatorKind::all_to_all || is_of_tokens(kind);
}

// --- tensors and operators ----------------------------------------------------------------------

/// How attention sees all tokens of sequences of which ranks have parts. Each way has lists of its
/// own.
enum class Sharing {
  none,   ///< a rank has whole sequences
  heads,  ///< ranks exchange tokens for heads
  keys    ///< ranks gather keys and values
};

/// How the ranks of a plan divide a segment, on which its list of operators depends: axes of more
/// than one rank that exchanges within a layer, the way to share sequences along cp, and the way of
/// tokens to experts.
struct Division {
  AxisSet axes = {};
  Sharing sharing = Sharing::none;
  bool dispatches = false;  ///< a token is sent to the ranks of its experts, else to all
  int mlp_tiles = 1;        ///< tiles of tokens in which a rank works on a dense MLP

  constexpr Division() = default;
  constexpr Division(AxisSet axes_, Sharing way = Sharing::heads, bool dispatches_ = false,
                     int mlp_tiles_ = 1)
      : axes(axes_),
        sharing(axes.contains(Axis::cp) ? way : Sharing::none),
        dispatches(axes.contains(Axis::ep) && dispatches_),
        mlp_tiles(mlp_tiles_) {}
  constexpr Division(Axis axis) : Division(AxisSet(axis)) {}
  constexpr Division(Sharing way)
      : Division(way == Sharing::none ? AxisSet() : AxisSet(Axis::cp), way) {}
  auto operator<=>(const Division&) const = default;
};

/// The part of a segment that one rank computes: the variables of its expressions.
struct Split {
  int tp = 1;
  int microbatch = 1;   ///< "b"
  int ep = 1;           ///< ranks over which whole experts are divided: 1, tp, or a multiple of tp
  int cp = 1;           ///< ranks that share the one sequence of a microbatch
  int gather_keys = 0;  ///< 1: these gather keys and values, in zigzag order
  int dispatch_tokens = 0;  ///< 1: ranks of ep send a token to the ranks of its experts only
  int mlp_tiles = 1;        ///< tiles of tokens in which a rank works on a dense MLP

  auto operator<=>(const Split&) const = default;
  Sharing sharing() const {
    return cp == 1 ? Sharing::none : gather_keys == 1 ? Sharing::keys : Sharing::heads;
  }
  /// Data-parallel ranks that divide whole experts, each with the ranks of its tp group.
  int expert_data_ranks() const { return ep > tp ? ep / tp : 1; }
  /// Ranks of a group that exchanges within a layer.
  int size(AxisSet axes) const {
    return (axes.contains(Axis::tp) ? tp : 1) * (axes.contains(Axis::cp) ? cp : 1) *
           (axes.contains(Axis::ep) ? expert_data_ranks() : 1);
  }
  Division division() const {
    AxisSet found;
    for (const Axis axis : {Axis::tp, Axis::cp, Axis::ep})
      if (size(axis) > 1) found = found.with(axis);
    return {found, sharing(), dispatch_tokens == 1, mlp_tiles};
  }
  std::map<std::string, double, std::less<>> values() const {
    return {{"b", microbatch}, {"cp", cp}, {"ep", ep}, {"tp", tp}};
  }
};

/// Index into Segment::tensors.
enum class TensorId : int { input, output };

struct Tensor {
  enum class Gradient {
    scratch,   ///< lives from its readers' backward to its writer's
    products,  ///< stays for the weights part of a split backward: the output of a product
    in_place   ///< replaces the tensor in the forward, as cross-entropy does
  };

  std::string name;
  Expr rows, columns;  ///< sizes on one rank, in the variables of Split
  int element_bytes;
  AxisSet cut = {};       ///< ranks along these axes hold different rows of it
  AxisSet gathered = {};  ///< has the rows of all ranks along these axes
  int copies = 1;         ///< rows for each token
  bool held = false;     ///< has rows of the experts that the rank holds, as many at once as `rows`
  bool brought = false;  ///< gathered before its segment computes, into a buffer of its own
  bool sent = false;     ///< has the rows that a rank sends to the ranks of experts
  bool arrives = false;  ///< has the rows that come from other ranks for the experts
  bool remade = false;   ///< is never kept: each backward that needs it makes it again
  bool stays = false;    ///< is kept, though a backward could make it again
  // Derived:
  bool summed = false;  ///< ranks of several parts of the weights hold terms of it
  Gradient gradient = Gradient::scratch;
  TensorId gradient_of = {};   ///< the tensor whose gradient has the same place
  TensorId rows_of = {};       ///< the tensor as whose rows it is made: a gathered one, or itself
  bool apart = false;          ///< has another place than its gradient if it is made again
  Expr forward_offset = 0.0;   ///< elements before it in the forward's scratch
  Expr backward_offset = 0.0;  ///< elements before its gradient in the backward's scratch
  Expr again_offset = 0.0;     ///< elements before itself there, if it is made again

  Expr elements() const { return rows * columns; }
};

/// A kernel call of a segment. Dims, FLOPs and bytes are expressions in the variables of Split.
/// Dims by kind: matmul, matmul_fp8, whose factors are rounded to 8 bits, logits and router {M, N,
/// K}; experts {M, N, K, E}, M of all E on the rank together, and absorb_queries and expand_values
/// of heads likewise; attention {batch, T, heads, head_dim}; cached_attention {N, T, heads,
/// head_dim}; norms, gelu, gelu_erf, swiglu, geglu, clamped_swiglu, dispatch, combine, cut_heads,
/// join_heads, cut_keys, narrow_values and residual {N, C}, C columns written; rope {N, heads,
/// head_dim}; expand_keys {N, heads, columns written of a head}; pointwise {elements}; embedding
/// {N, C, V}; cross_entropy {N, V}; choose_experts {N, E, k}; order_copies and sigmoid {N};
/// dequantize and update {elements}.
struct Operator {
  std::string name;
  OperatorKind kind;
  TensorId read, written;  ///< the same one: in place
  std::vector<TensorId> statistics = {};
  std::optional<TensorId> second = {};  ///< read too, if `read` has keys of all ranks: queries by
                                        ///< attention, the turned key by expand_keys
  std::optional<TensorId> gates = {};   ///< read too: a factor of each row
  std::optional<TensorId> routes = {};  ///< read too: experts and rows of the tokens' copies
  std::vector<Module> modules = {};     ///< side by side, each with columns of its own
  /// A product's factor. lora_b: the product is added to `written`.
  Part part = Part::weight;
  std::vector<Expr> dims = {};
  Expr forward_flops = 0.0;
  Expr backward_flops = 0.0;
  Expr forward_bytes = 0.0;  ///< read and written in fp32
  Expr backward_bytes = 0.0;
  Expr expected_bytes = 0.0;  ///< bytes of an exchange of tokens, if loads are even
  double share = 1.0;         ///< share of FLOPs and time that is done: attention within a window
  double trained = 1.0;       ///< share of its parameters that is, over blocks with a backward
  bool quantized = false;     ///< a product whose factor is made of blocks before each call
  AxisSet axes = {};          ///< ranks of an exchange differ along these
  // Derived:
  bool output_only = false;  ///< not needed if a layer's last segment is recomputed
  bool again = false;        ///< its backward makes its output again, unless that is kept
  bool remade = false;       ///< a backward runs it once more, apart from its own backward

  bool in_place() const { return read == written; }
};

/// Whether measured dims {N, T, heads, head_dim} of attention to kept keys are those of a prompt: N
/// tokens of one sequence, which see T = N / 2 in the mean. Else N sequences have a token each,
/// which sees T.
constexpr bool is_prompt(std::span<const std::int64_t> dims) { return dims[0] > dims[1]; }
/// FLOPs of N tokens that see T keys each, of C features of all heads: 4 N T C.
template <class N>
N cached_attention_flops(const N& tokens, const N& seen, const N& columns) {
  return 4.0 * tokens * seen * columns;
}

/// A kernel call of a backward.
struct BackwardCall {
  int op;            ///< index into Segment::operators
  bool again;        ///< makes the operator's output again
  bool for_weights;  ///< belongs to the weights part of a split backward, else to its input part
};

// --- segments -----------------------------------------------------------------------------------

/// Parts of a model that compute alone, see model.hpp.
enum class SegmentKind { embedding, attention, window, mlp, experts, parallel, head };
const char* name(SegmentKind kind);
/// Axes of the ranks that sum a segment's output, each of which has a part of its weights.
AxisSet sum_axes(SegmentKind kind);
/// Their number, in "tp" and "ep".
Expr sum_ranks(SegmentKind kind);
constexpr bool attends(SegmentKind kind) {
  return kind == SegmentKind::attention || kind == SegmentKind::window ||
         kind == SegmentKind::parallel;
}

/// A tensor that a segment's forward keeps for its backward, beside its input.
struct Saved {
  std::string name;
  Expr elements;             ///< elements on one rank; none: it is not saved
  int element_bytes;         ///< statistics are fp32 whatever the precision
  bool cheap = false;        ///< made again in a backward, except with Recompute::none
  bool for_weights = false;  ///< gradients of weights need it
  TensorId tensor = {};

  Expr bytes() const { return double(element_bytes) * elements; }
};

struct Segment {
  SegmentKind kind;
  std::vector<Tensor> tensors = {};      ///< index: TensorId
  std::vector<Operator> operators = {};  ///< the forward's order
  int activation_bytes = 0;              ///< bytes per element of the scratch
  Expr dequantized_elements = 0.0;  ///< largest factor that is made of blocks: ends the scratch
  // Derived:
  TensorId terms = TensorId::output;  ///< written by the last products; other ranks have other
                                      ///< terms of the output if it is not the output itself
  std::vector<BackwardCall> backward = {};
  std::vector<Saved> saved = {};  ///< saved tensors in the order of the kernels; cheap ones last
  Expr forward_workspace_elements = 0.0;   ///< scratch during forward, beside input, saved, output
  Expr backward_workspace_elements = 0.0;  ///< scratch during backward, beside input, saved, d
                                           ///< output, d input
  // The first part of a split backward makes the gradients of the input and of norms, the second
  // those of linear layers. The first part's scratch is backward_workspace_elements less
  // product_grads_elements.
  Expr product_grads_elements = 0.0;  ///< gradients of outputs of products, from first to second
                                      ///< part, where they are not that of the segment's output
  Expr weights_workspace_elements = 0.0;  ///< scratch of the second part

  const Tensor& tensor(TensorId id) const { return tensors[std::size_t(id)]; }
  Tensor& tensor(TensorId id) { return tensors[std::size_t(id)]; }
  Expr forward_workspace_bytes() const {
    return double(activation_bytes) * forward_workspace_elements;
  }
  Expr backward_workspace_bytes() const {
    return double(activation_bytes) * backward_workspace_elements;
  }
  /// Tensors that are brought together, in the order of the exchanges.
  std::vector<TensorId> brought() const;
  Expr product_grads_bytes() const { return double(activation_bytes) * product_grads_elements; }
  Expr weights_workspace_bytes() const {
    return double(activation_bytes) * weights_workspace_elements;
  }
};

/// Fills in all derived members from tensors and operators.
///
/// The backward first leads from the output's gradient to those of all products, which stay. Then
/// each reader of the input adds to the input's gradient. Readers of a tensor come in forward
/// order.
void derive(Segment& segment);

// --- runs ---------------------------------------------------------------------------------------

/// Indices [first, end) without an exchange between them. The exchange behind a run is at `end`,
/// unless the run is the part of a longer one that the exchange before it does not hold up.
struct Run {
  int first, end;
  bool beside = false;  ///< touches nothing of the exchanges before it that are on their way
};
/// Finds the calls that need not wait for exchanges of tokens on their way.
class OnTheWay {
 public:
  explicit OnTheWay(const Segment& segment) : segment_(segment) {}

  /// Meets the next operator, or the operator of the next call of a backward.
  ///
  /// @param exchanges  whether several ranks exchange a tensor by it
  /// @return whether it is a kernel's beside such an exchange
  bool meet(const Operator& op, bool exchanges);
  bool any() const { return !moved_.empty(); }

 private:
  std::vector<TensorId> places(const Operator& op) const;

  const Segment& segment_;
  std::vector<TensorId> moved_ = {};  ///< tensors, and gradients, on their way
};
/// Runs of a segment's operators.
std::vector<Run> forward_runs(const Segment& segment, const Split& split);
/// Runs of its backward calls.
std::vector<Run> backward_runs(const Segment& segment, const Split& split);

}  // namespace brume::model
