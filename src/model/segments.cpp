/// @file The list of operators of each segment, as expressions in the variables of Split.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "heads.hpp"
#include "model/model.hpp"

namespace brume::model {
namespace {

/// Sizes a segment's formulas speak of.
struct Sizes {
  explicit Sizes(const Config& m, SegmentKind kind = SegmentKind::attention)
      : b(Expr::variable("b")),
        tp(Expr::variable("tp")),
        ep(Expr::variable("ep")),
        cp(Expr::variable("cp")),
        seq(m.seq_len),
        tokens(b * double(m.computed_tokens()) / cp *
               (kind == SegmentKind::experts ? expert_data_ranks(m) : Expr(1.0))),
        hidden(m.hidden_size),
        heads_tp(Expr(m.num_heads) / tp),
        head_dim(m.head_dim()),
        attended_tp(Expr(m.attention_size()) / tp),
        values_tp(Expr(m.value_size()) / tp),
        keys_tp(m.kv_heads() == m.num_heads ? attended_tp : local_heads(m.kv_heads()) * head_dim),
        qkv_tp(m.kv_heads() == m.num_heads ? 3.0 * attended_tp : attended_tp + 2.0 * keys_tp),
        ffn_tp(m.inner_size(kind) * share_of_expert(kind)),
        mlp_in_tp(m.mlp_in_size(kind) * share_of_expert(kind)),
        shared_tp(m.shared_expert_ffn_size / sum_ranks(SegmentKind::experts)),
        vocab_tp(ceil(double(m.vocab_size) / tp)) {}
  Expr b, tp, ep, cp;
  Expr seq;     ///< tokens that a query may see
  Expr tokens;  ///< of which this rank computes; of experts, of all ranks that divide them
  Expr hidden, heads_tp, head_dim;
  Expr attended_tp, values_tp, keys_tp,
      qkv_tp;  ///< features of this rank's query heads, their values, key heads, q, k and v
  Expr ffn_tp, mlp_in_tp, shared_tp, vocab_tp;

 private:
  /// This rank's share of the inner features of an MLP or an expert.
  Expr share_of_expert(SegmentKind kind) const {
    return kind == SegmentKind::experts ? min(ep / tp, 1.0) : 1.0 / tp;
  }
};

/// Knows how much is trained of the parameters of blocks that have a backward.
class TrainedShares {
 public:
  /// @param blocks  of the model; may be left out where all parameters are trained
  TrainedShares(const Config& m, const std::vector<Block>& blocks) {
    if (m.frozen_parameters.empty()) return;
    for (auto block = blocks.begin() + m.frozen_blocks; block != blocks.end(); ++block)
      parameters_.insert(parameters_.end(), block->parameters.begin(), block->parameters.end());
  }

  /// @return the share that is trained of a part of the modules; 1 if they have none
  double of(const std::vector<Module>& modules, Part part) const {
    std::int64_t all = 0, trained = 0;
    for (const Parameter& one : parameters_) {
      if (one.id.part != part || !std::ranges::count(modules, one.id.module)) continue;
      all += one.elements();
      if (!one.frozen) trained += one.elements();
    }
    return all > 0 ? double(trained) / double(all) : 1.0;
  }

 private:
  std::vector<Parameter> parameters_;  ///< empty where all are trained
};

/// Of the pairs of a query and a key before it, T^2 / 2, those within the window and, in the mean,
/// within a document. Where there are both, the smaller share is what is left at most.
double visible_share(const Config& m, SegmentKind kind) {
  if (kind != SegmentKind::window) return m.document_share;
  const double window = double(std::min(m.window, m.seq_len)) / m.seq_len;
  if (m.generates()) return window;
  return std::min(m.document_share, window * (2.0 - window));
}

/// Experts that tokens of a pass choose: all in training, and where few tokens choose evenly
///
///   E (1 - (1 - k / E)^tokens)
double chosen_experts(const Config& m) {
  const double all = m.num_experts;
  if (!m.generates() || m.num_experts == 0) return all;
  return all * (1.0 - std::pow(1.0 - m.experts_per_token / all, m.computed_tokens()));
}

/// The operator of an MLP's activation: a row per kind, ordered as they are.
struct ActivationRow {
  MlpKind mlp;
  OperatorKind kind;
};
constexpr ActivationRow activations[] = {
    {MlpKind::gelu_tanh, OperatorKind::gelu},
    {MlpKind::gelu_erf, OperatorKind::gelu_erf},
    {MlpKind::swiglu, OperatorKind::swiglu},
    {MlpKind::geglu, OperatorKind::geglu},
    {MlpKind::clamped_swiglu, OperatorKind::clamped_swiglu},
};
static_assert(in_order(activations, &ActivationRow::mlp));

/// Lists a segment's operators in forward order. Those of a layer are, branch by branch, what leads
/// from its input to the inner tensors, then what these add to the stream.
class SegmentList {
 public:
  SegmentList(const Config& m, SegmentKind kind, Division division)
      : SegmentList(m, kind, division,
                    m.frozen_parameters.empty() && m.quantization == Quantization::none
                        ? std::vector<Block>()
                        : blocks(m)) {}

  Segment embedding();
  Segment layer();
  Segment head();

 private:
  SegmentList(const Config& m, SegmentKind kind, Division division,
              const std::vector<Block>& blocks)
      : m_(m),
        s_(m, kind),
        trained_(m, blocks),
        sharing_(division.sharing),
        dispatches_(kind == SegmentKind::experts && division.dispatches),
        cuts_tokens_(kind != SegmentKind::embedding && kind != SegmentKind::head &&
                     division.axes.meets(sum_axes(kind))),
        segment_{.kind = kind} {
    segment_.activation_bytes = activation_bytes(m.precision);
    if (m.quantization != Quantization::none)
      for (const Parameter& one : blocks.at(1).parameters)
        if (one.quantization != Quantization::none) quantized_.push_back(one.id.module);
    if (kind == SegmentKind::head) s_.tokens = head_pieces(m).tokens;
    for (const char* end : {"input", "output"}) {
      const TensorId id = activation(end, s_.hidden);
      if (cuts_tokens_) cut(id);
    }
  }

  TensorId tensor(std::string name, Expr rows, Expr columns, int element_bytes) {
    segment_.tensors.push_back(
        {std::move(name), std::move(rows), std::move(columns), element_bytes});
    return TensorId(segment_.tensors.size() - 1);
  }
  TensorId activation(std::string name, const Expr& columns) {
    return tensor(std::move(name), s_.tokens, columns, segment_.activation_bytes);
  }
  /// @param copies  rows for each token
  TensorId in_fp32(std::string name, const Expr& columns, int copies = 1) {
    const TensorId id =
        tensor(std::move(name), double(copies) * s_.tokens, columns, statistic_bytes);
    segment_.tensor(id).copies = copies;
    return id;
  }
  /// Rows of this rank's tokens.
  TensorId of_own(std::string name, const Expr& columns) {
    const TensorId id = activation(std::move(name), columns);
    if (cuts_tokens_) cut(id);
    return id;
  }
  /// Rows of the experts on this rank. Their number is known when tokens have chosen.
  TensorId held(std::string name, const Expr& columns) {
    const TensorId id = tensor(std::move(name), room_, columns, segment_.activation_bytes);
    segment_.tensor(id).held = true;
    return id;
  }
  TensorId statistic(std::string name, const Expr& rows) {
    return tensor(std::move(name), rows, 1.0, statistic_bytes);
  }

  struct Product {
    std::vector<Module> modules;
    Expr outputs, inputs;
    Part part = Part::weight;
  };
  /// [M, K] x [K, N]: backward makes both gradients, so it costs twice the forward.
  void product(std::string name, OperatorKind kind, TensorId read, TensorId written,
               const Product& product);
  void linear(const std::string& name, TensorId read, TensorId written,
              const std::vector<Module>& modules) {
    linear(name, read, written, modules, segment_.tensor(written).columns);
  }
  void linear(const std::string& name, TensorId read, TensorId written,
              const std::vector<Module>& modules, const Expr& outputs);
  /// A linear layer that may have an adapter, and the columns that it writes.
  using Target = std::pair<Module, Expr>;
  void adapt(const std::string& name, TensorId read, TensorId written,
             const std::vector<Target>& targets, OperatorKind kind = OperatorKind::matmul);
  /// A pass over memory: so many reads and writes per element, forward and backward.
  Operator& streaming(std::string name, OperatorKind kind, TensorId read, TensorId written,
                      std::vector<Expr> dims, const Expr& elements);
  void epilogue(std::string name, TensorId read, TensorId written, std::vector<Module> modules);
  void norm(const std::string& name, Module module, TensorId read, TensorId written);
  /// Cuts the rows of a tensor over the ranks that sum the output.
  void cut(TensorId id) {
    segment_.tensor(id).rows = s_.tokens / sum_ranks(segment_.kind);
    segment_.tensor(id).cut = sum_axes(segment_.kind);
  }
  void exchange(std::string name, OperatorKind kind, TensorId read, TensorId written, AxisSet axes);
  /// Rows of all tokens of a sequence that several ranks share.
  TensorId of_sequence(std::string name, const Expr& columns) {
    const TensorId id = tensor(std::move(name), s_.b * s_.seq, columns, segment_.activation_bytes);
    segment_.tensor(id).gathered = Axis::cp;
    return id;
  }
  TensorId to_heads(const std::string& name, TensorId read, const Expr& columns);
  TensorId to_tokens(const std::string& name, TensorId read);
  TensorId gathered_keys(TensorId qkv);
  TensorId normed(const std::string& name, Module module);
  TensorId exchanged(const std::string& name, TensorId normed);
  TensorId qkv(TensorId normed);
  TensorId down(const std::string& name, TensorId normed, Module module, Module norm, int rank);
  TensorId latent_qkv(TensorId normed);
  TensorId latent_attention(TensorId normed);
  void latent_product(const char* name, OperatorKind kind, TensorId read, TensorId written,
                      const Expr& outputs, const Expr& inputs);
  void cached_attention(TensorId qkv, TensorId attended, const Expr& heads, const Expr& head_dim,
                        const Expr& key_columns);
  TensorId attention(TensorId normed);
  /// The first products of a dense MLP.
  struct Inner {
    std::string prefix;  ///< of names
    Module in, gate, up;
    Expr in_width, width;
    std::optional<TensorId> gates = {};  ///< factors of its rows
  };
  TensorId mlp(TensorId normed, const Inner& inner);
  TensorId shared_expert(TensorId normed);
  void choose(TensorId normed, const Expr& experts, int copies);
  TensorId arrived(TensorId normed, const Expr& experts, int copies);
  void travel(std::string name, OperatorKind kind, TensorId read, TensorId written);
  TensorId experts(TensorId normed);
  void combine(TensorId read, TensorId written);
  OperatorKind activation_kind() const { return activations[std::size_t(m_.mlp())].kind; }
  OperatorKind product_of_layer() const {
    return m_.precision == Precision::fp8 ? OperatorKind::matmul_fp8 : OperatorKind::matmul;
  }
  Segment derived() {
    derive(segment_);
    return std::move(segment_);
  }

  const Config& m_;
  Sizes s_;
  TrainedShares trained_;
  Sharing sharing_;
  bool dispatches_;   ///< rows travel to the ranks of their experts, else all are gathered
  bool cuts_tokens_;  ///< norms and residuals are of this rank's rows
  std::vector<Module> quantized_;
  Segment segment_;
  TensorId routes_ = {}, gates_ = {};  ///< of the tokens' copies
  TensorId sent_ = {}, sends_ = {};    ///< rows that this rank's tokens have for other ranks
  Expr held_ = 0.0;  ///< rows that the experts on a rank are expected to have where they have most
  Expr room_ = 0.0;  ///< rows of tensors of held experts: held_, and at least one token's
};

void SegmentList::product(std::string name, OperatorKind kind, TensorId read, TensorId written,
                          const Product& product) {
  const bool grouped = kind == OperatorKind::experts;
  const Expr &m = grouped ? held_ : segment_.tensor(read).rows, &n = product.outputs,
             &k = product.inputs;
  const Expr flops = 2.0 * m * n * k;
  const Expr experts = chosen_experts(m_) / s_.ep;
  const Expr weights = grouped ? experts * k * n : k * n;
  const Expr bytes = 4.0 * (m * k + weights + m * n);
  const double trained = trained_.of(product.modules, product.part);
  segment_.operators.push_back({.name = std::move(name),
                                .kind = kind,
                                .read = read,
                                .written = written,
                                .modules = product.modules,
                                .part = product.part,
                                .dims = {m, n, k},
                                .forward_flops = flops,
                                .backward_flops = 2.0 * flops,
                                .forward_bytes = bytes,
                                .backward_bytes = 2.0 * bytes,
                                .trained = trained});
  Operator& op = segment_.operators.back();
  if (!grouped) return;
  op.dims.push_back(experts);
  op.routes = routes_;
}

void SegmentList::linear(const std::string& name, TensorId read, TensorId written,
                         const std::vector<Module>& modules, const Expr& outputs) {
  product(name, product_of_layer(), read, written,
          {modules, outputs, segment_.tensor(read).columns});
  Operator& op = segment_.operators.back();
  op.quantized = std::ranges::any_of(
      modules, [&](Module one) { return std::ranges::count(quantized_, one) > 0; });
  if (!op.quantized) return;
  segment_.dequantized_elements = max(segment_.dequantized_elements, op.dims[1] * op.dims[2]);
}

/// An adapter a target: all first factors make a tensor of their columns side by side.
///
/// @param kind  of both products
void SegmentList::adapt(const std::string& name, TensorId read, TensorId written,
                        const std::vector<Target>& targets, OperatorKind kind) {
  Expr outputs = 0.0, elements = 0.0;  // of the second factors
  std::vector<Module> modules;
  std::vector<int> ranks;
  for (const auto& [module, columns] : targets)
    if (const Adapter::Target* target = m_.adapter.find(module)) {
      modules.push_back(module);
      ranks.push_back(target->rank);
      outputs += columns;
      elements += double(target->rank) * columns;
    }
  if (modules.empty()) return;
  const double width = std::accumulate(ranks.begin(), ranks.end(), 0);
  const bool alike = std::ranges::count(ranks, ranks.front()) == std::ssize(ranks);
  const bool grouped = kind == OperatorKind::experts;
  const TensorId low = grouped ? held(name + ".low", width) : activation(name + ".low", width);
  product(name + " lora a", kind, read, low,
          {modules, width, segment_.tensor(read).columns, Part::lora_a});
  // Unlike ranks count by their mean, which gives the FLOPs of all.
  product(name + " lora b", kind, low, written,
          {modules, outputs, alike ? Expr(ranks.front()) : elements / outputs, Part::lora_b});
}

Operator& SegmentList::streaming(std::string name, OperatorKind kind, TensorId read,
                                 TensorId written, std::vector<Expr> dims, const Expr& elements) {
  segment_.operators.push_back({.name = std::move(name),
                                .kind = kind,
                                .read = read,
                                .written = written,
                                .dims = std::move(dims),
                                .forward_flops = 8.0 * elements,
                                .backward_flops = 16.0 * elements,
                                .forward_bytes = 4.0 * rule(kind).forward_accesses * elements,
                                .backward_bytes = 4.0 * rule(kind).backward_accesses * elements});
  return segment_.operators.back();
}

/// A bias, or the stream and biases to which products add.
void SegmentList::epilogue(std::string name, TensorId read, TensorId written,
                           std::vector<Module> modules) {
  const Expr elements = segment_.tensor(written).elements();
  Operator& op =
      streaming(std::move(name), OperatorKind::pointwise, read, written, {elements}, elements);
  op.trained = trained_.of(modules, Part::bias);
  op.modules = std::move(modules);
}

void SegmentList::norm(const std::string& name, Module module, TensorId read, TensorId written) {
  const bool layer = m_.norm() == NormKind::layer;
  const Expr rows = segment_.tensor(read).rows, columns = segment_.tensor(read).columns;
  Operator& op = streaming(name, layer ? OperatorKind::layer_norm : OperatorKind::rms_norm, read,
                           written, {rows, columns}, rows * columns);
  op.modules = {module};
  if (layer) op.statistics.push_back(statistic(name + ".mean", rows));
  op.statistics.push_back(statistic(name + ".rstd", rows));
}

void SegmentList::exchange(std::string name, OperatorKind kind, TensorId read, TensorId written,
                           AxisSet axes) {
  segment_.operators.push_back(
      {.name = std::move(name), .kind = kind, .read = read, .written = written, .axes = axes});
}

/// Makes of all heads of this rank's tokens some heads of all tokens of the sequence.
///
/// @param columns  of all ranks' heads together: ranks may share one
TensorId SegmentList::to_heads(const std::string& name, TensorId read, const Expr& columns) {
  const TensorId parts = activation(name + ".parts", columns);
  streaming("cut " + name, OperatorKind::cut_heads, read, parts, {s_.tokens, columns},
            s_.tokens * columns);
  const TensorId heads = of_sequence(name + ".heads", columns / s_.cp);
  exchange(name + " to heads", OperatorKind::all_to_all, parts, heads, Axis::cp);
  return heads;
}

/// The way back.
TensorId SegmentList::to_tokens(const std::string& name, TensorId read) {
  const Expr columns = segment_.tensor(read).columns * s_.cp;
  const TensorId parts = activation(name + ".parts", columns);
  exchange(name + " to tokens", OperatorKind::all_to_all, read, parts, Axis::cp);
  const TensorId joined = activation(name, columns);
  streaming("join " + name, OperatorKind::join_heads, parts, joined, {s_.tokens, columns},
            s_.tokens * columns);
  return joined;
}

/// Keys and values of all tokens of a sequence, side by side.
TensorId SegmentList::gathered_keys(TensorId qkv) {
  const Expr columns = 2.0 * s_.keys_tp;
  const TensorId keys = activation("keys", columns);
  streaming("cut keys", OperatorKind::cut_keys, qkv, keys, {s_.tokens, columns},
            s_.tokens * columns);
  const TensorId all = of_sequence("keys.all", columns);
  exchange("gather keys", OperatorKind::all_gather, keys, all, Axis::cp);
  return all;
}

/// The normed input. If several ranks sum the output, each one norms its rows of it.
TensorId SegmentList::normed(const std::string& name, Module module) {
  if (dispatches_) {
    const TensorId own = of_own(name + ".out", s_.hidden);
    norm(name, module, TensorId::input, own);
    return own;
  }
  const TensorId out = activation(name + ".out", s_.hidden);
  const TensorId made = cuts_tokens_ ? activation(name + ".rows", s_.hidden) : out;
  if (cuts_tokens_) cut(made);
  norm(name, module, TensorId::input, made);
  if (cuts_tokens_) {
    exchange("gather " + name, OperatorKind::all_gather, made, out, sum_axes(segment_.kind));
    segment_.tensor(out).brought = true;
  }
  return out;
}

/// The same after tests' exchanges.
TensorId SegmentList::exchanged(const std::string& name, TensorId out) {
  if (!m_.exchanges_normed || dispatches_) return out;
  const TensorId there = activation(name + ".there", s_.hidden);
  const TensorId back = activation(name + ".back", s_.hidden);
  exchange("there", OperatorKind::all_to_all, out, there, Axis::tp);
  exchange("back", OperatorKind::all_to_all, there, back, Axis::tp);
  return back;
}

/// Queries, keys and values, of which positions turned nothing so far.
TensorId SegmentList::qkv(TensorId normed) {
  const bool shared_keys = m_.kv_heads() != m_.num_heads;
  const std::vector<Module> modules =
      shared_keys ? std::vector{Module::q, Module::kv} : std::vector{Module::qkv};
  TensorId qkv = activation("qkv", s_.qkv_tp);
  linear("qkv", normed, qkv, modules);
  if (m_.qkv_bias) epilogue("qkv bias", qkv, qkv, modules);
  adapt("qkv", normed, qkv,
        {{Module::qkv, s_.qkv_tp},
         {Module::q, s_.attended_tp},
         {Module::kv, 2.0 * s_.keys_tp},
         {Module::k, s_.keys_tp},
         {Module::v, s_.keys_tp}});
  return qkv;
}

/// Fewer features of each token, and their norm.
TensorId SegmentList::down(const std::string& name, TensorId normed, Module module, Module norm,
                           int rank) {
  const TensorId low = activation(name, double(rank)),
                 out = activation(name + ".out", double(rank));
  linear(name, normed, low, {module});
  adapt(name, normed, low, {{module, double(rank)}});
  this->norm(name + " norm", norm, low, out);
  return out;
}

/// The same from latent attention's products, which write side by side. Values are as wide as keys.
TensorId SegmentList::latent_qkv(TensorId normed) {
  const Expr still = s_.heads_tp * double(m_.still_dim() + m_.v_head_dim()),
             turned = double(m_.rotary_dim());
  const TensorId queries = m_.q_lora_rank > 0 ? down("q_down", normed, Module::q_down,
                                                     Module::q_down_norm, m_.q_lora_rank)
                                              : normed;
  const TensorId keys =
      down("kv_down", normed, Module::kv_down, Module::kv_down_norm, m_.kv_lora_rank);
  const TensorId parts = activation("qkv.parts", s_.attended_tp + still + turned);
  linear("q", queries, parts, {Module::q}, s_.attended_tp);
  adapt("q", queries, parts, {{Module::q, s_.attended_tp}});
  linear("kv_up", keys, parts, {Module::kv_up}, still);
  adapt("kv_up", keys, parts, {{Module::kv_up, still}});
  linear("k_turned", normed, parts, {Module::k_turned}, turned);
  const TensorId qkv = activation("qkv", s_.qkv_tp);
  streaming("expand", OperatorKind::expand_keys, parts, qkv, {s_.tokens, s_.qkv_tp},
            s_.tokens * s_.qkv_tp);
  return qkv;
}

/// Attention to kept keys: each token sees all of s_.seq keys, each sequence's keys are read once.
void SegmentList::cached_attention(TensorId qkv, TensorId attended, const Expr& heads,
                                   const Expr& head_dim, const Expr& key_columns) {
  const Expr keys = double(m_.generation.sequences) * s_.seq, columns = heads * head_dim;
  segment_.operators.push_back({.name = "attention",
                                .kind = OperatorKind::cached_attention,
                                .read = qkv,
                                .written = attended,
                                .modules = std::vector<Module>(m_.sinks() ? 1 : 0, Module::sinks),
                                .dims = {s_.tokens, s_.seq, heads, head_dim},
                                .forward_flops = cached_attention_flops(s_.tokens, s_.seq, columns),
                                .forward_bytes = 8.0 * (keys * key_columns + s_.tokens * columns),
                                .share = visible_share(m_, segment_.kind)});
}

/// A product of each head with its part of kv_up.
void SegmentList::latent_product(const char* name, OperatorKind kind, TensorId read,
                                 TensorId written, const Expr& outputs, const Expr& inputs) {
  product(name, kind, read, written, {{Module::kv_up}, outputs, inputs});
  Operator& op = segment_.operators.back();
  op.forward_flops = op.forward_flops * s_.heads_tp;
  op.forward_bytes = op.forward_bytes * s_.heads_tp;
  op.dims = {s_.tokens * s_.heads_tp, outputs, inputs, s_.heads_tp};
}

/// The same where latent features are kept: they are the one key and value of all heads.
TensorId SegmentList::latent_attention(TensorId normed) {
  const double turned = m_.rotary_dim(), rank = m_.kv_lora_rank, kept = turned + rank;
  const TensorId queries = m_.q_lora_rank > 0 ? down("q_down", normed, Module::q_down,
                                                     Module::q_down_norm, m_.q_lora_rank)
                                              : normed;
  const TensorId low = activation("kv_down", rank);
  const TensorId parts = activation("latent.parts", kept + s_.attended_tp);
  linear("kv_down", normed, low, {Module::kv_down});
  adapt("kv_down", normed, low, {{Module::kv_down, rank}});
  norm("kv_down norm", Module::kv_down_norm, low, parts);
  linear("q", queries, parts, {Module::q}, s_.attended_tp);
  adapt("q", queries, parts, {{Module::q, s_.attended_tp}});
  linear("k_turned", normed, parts, {Module::k_turned}, turned);
  const TensorId heads = activation("latent.heads", (s_.heads_tp + 2.0) * kept);
  latent_product("absorb", OperatorKind::absorb_queries, parts, heads, rank,
                 double(m_.still_dim()));
  streaming("rope", OperatorKind::rope, heads, heads, {s_.tokens, s_.heads_tp + 1.0, kept},
            s_.tokens * (s_.heads_tp + 1.0) * kept);
  const TensorId attended = activation("latent.attended", s_.heads_tp * kept);
  cached_attention(heads, attended, s_.heads_tp, kept, kept);
  const TensorId values = activation("values", s_.values_tp);
  latent_product("expand", OperatorKind::expand_values, attended, values, double(m_.v_head_dim()),
                 rank);
  return values;
}

/// @return what the output's product reads
TensorId SegmentList::attention(TensorId normed) {
  if (m_.keeps_latents()) return latent_attention(normed);
  TensorId qkv = m_.latent() ? latent_qkv(normed) : this->qkv(normed);
  const Expr turned = s_.attended_tp + s_.keys_tp;  // features of queries and keys
  if (m_.qk_norm) {
    const Expr heads = s_.tokens * (turned / s_.head_dim);
    const TensorId out = activation("qk.out", s_.qkv_tp);
    const std::vector<Expr> dims =
        m_.qk_norm_joint ? std::vector{s_.tokens, turned} : std::vector{heads, s_.head_dim};
    Operator& norm =
        streaming("qk norm", OperatorKind::rms_norm, qkv, out, dims, s_.tokens * turned);
    norm.modules = {Module::q_norm, Module::k_norm};
    norm.statistics = {statistic("qk.rstd", m_.qk_norm_joint ? 2.0 * s_.tokens : heads)};
    qkv = out;
  }
  if (m_.rotary())
    streaming("rope", OperatorKind::rope, qkv, qkv, {s_.tokens, turned / s_.head_dim, s_.head_dim},
              s_.tokens * turned);
  // Ranks that share a sequence see all of it, each with a part of the heads or of the queries.
  const bool by_heads = sharing_ == Sharing::heads;
  Expr heads = s_.heads_tp;
  std::optional<TensorId> queries;
  if (sharing_ == Sharing::keys) {
    queries = qkv;
    qkv = gathered_keys(qkv);
  }
  if (by_heads) {
    qkv = to_heads("qkv", qkv, s_.attended_tp + 2.0 * max(s_.keys_tp, s_.cp * s_.head_dim));
    heads = heads / s_.cp;
  }
  const TensorId attended = by_heads ? of_sequence("attended.heads", s_.attended_tp / s_.cp)
                                     : activation("attended", s_.attended_tp);
  // Queries of some tokens and all heads are as much work as those of all tokens and some heads.
  if (sharing_ == Sharing::keys) heads = ceil(heads / s_.cp);
  const Expr flops = 2.0 * s_.tokens * s_.seq * s_.attended_tp;  // half of the square: causal
  const std::vector<Module> sinks(m_.sinks() ? 1 : 0, Module::sinks);
  // Attention computes with values as wide as keys.
  const auto narrowed = [&] {
    if (m_.v_head_dim() == m_.head_dim()) return attended;
    const Expr rows = segment_.tensor(attended).rows;
    const Expr columns = by_heads ? s_.values_tp / s_.cp : s_.values_tp;
    const TensorId narrow =
        by_heads ? of_sequence("narrow.heads", columns) : activation("narrow", columns);
    streaming("narrow", OperatorKind::narrow_values, attended, narrow, {rows, columns},
              rows * columns);
    return narrow;
  };
  if (m_.generates()) {
    cached_attention(qkv, attended, heads, s_.head_dim, s_.keys_tp);
    return narrowed();
  }
  segment_.operators.push_back({.name = "attention",
                                .kind = OperatorKind::attention,
                                .read = qkv,
                                .written = attended,
                                .statistics = {statistic("lse", s_.tokens * s_.heads_tp)},
                                .queries = queries,
                                .modules = sinks,
                                .dims = {s_.b, s_.seq, heads, s_.head_dim},
                                .forward_flops = flops,
                                .backward_flops = 2.5 * flops,
                                .forward_bytes = 16.0 * s_.tokens * s_.attended_tp,
                                .backward_bytes = 32.0 * s_.tokens * s_.attended_tp,
                                .share = visible_share(m_, segment_.kind)});
  return by_heads ? to_tokens("attended", narrowed()) : narrowed();
}

/// @return what the output's product reads
TensorId SegmentList::mlp(TensorId normed, const Inner& inner) {
  const OperatorKind kind = activation_kind();
  const std::string& prefix = inner.prefix;
  const TensorId wide = activation(prefix + "wide", inner.in_width);
  const TensorId activated = activation(prefix + "activated", inner.width);
  linear(prefix + "in", normed, wide, {inner.in});
  adapt(prefix + "in", normed, wide,
        {{inner.in, inner.width}, {inner.gate, inner.width}, {inner.up, inner.width}});
  streaming(prefix + name(kind), kind, wide, activated, {s_.tokens, inner.width},
            s_.tokens * inner.in_width)
      .gates = inner.gates;
  return activated;
}

/// @return what the last product of the expert reads that every token passes
TensorId SegmentList::shared_expert(TensorId normed) {
  Inner inner{.prefix = "shared ",
              .in = Module::shared_in,
              .gate = Module::shared_gate,
              .up = Module::shared_up,
              .in_width = 2.0 * s_.shared_tp,
              .width = s_.shared_tp};
  if (m_.shared_expert_gate) {
    const TensorId logits = activation("shared logits", 1.0);
    linear("shared gate", normed, logits, {Module::shared_expert_gate});
    inner.gates = in_fp32("shared gates", 1.0);
    streaming("sigmoid", OperatorKind::sigmoid, logits, *inner.gates, {s_.tokens}, s_.tokens);
  }
  return mlp(normed, inner);
}

/// Experts of all tokens that this rank has, by the logits of these.
void SegmentList::choose(TensorId normed, const Expr& experts, int copies) {
  const TensorId logits = in_fp32("logits", experts);
  product("router", OperatorKind::router, normed, logits, {{Module::router}, experts, s_.hidden});
  if (m_.linear_bias) epilogue("router bias", logits, logits, {Module::router});
  gates_ = in_fp32("gates", 1.0, copies);
  routes_ = statistic("routes", 2.0 * double(copies) * s_.tokens + experts + 1.0);
  streaming("choice", OperatorKind::choose_experts, logits, gates_,
            {s_.tokens, experts, double(copies)}, s_.tokens * experts)
      .statistics = {routes_};
}

/// Each rank chooses for its own tokens. All know all choices, and so the rows that any two send
/// each other.
///
/// @return rows of tokens that have an expert on this rank, in the order of ranks
TensorId SegmentList::arrived(TensorId normed, const Expr& experts, int copies) {
  const Expr ranks = sum_ranks(segment_.kind), own = s_.tokens / ranks;
  const Expr copied = double(copies) * s_.tokens;
  const TensorId logits = in_fp32("logits", experts);
  cut(logits);
  product("router", OperatorKind::router, normed, logits, {{Module::router}, experts, s_.hidden});
  if (m_.linear_bias) epilogue("router bias", logits, logits, {Module::router});
  // Numbers of experts and gates.
  const TensorId choice = in_fp32("choice", 2.0 * double(copies)),
                 choices = in_fp32("choices", 2.0 * double(copies));
  cut(choice);
  streaming("choice", OperatorKind::choose_experts, logits, choice, {own, experts, double(copies)},
            own * experts);
  exchange("gather choices", OperatorKind::all_gather, choice, choices, sum_axes(segment_.kind));
  gates_ = in_fp32("gates", 1.0, copies);
  routes_ = statistic("routes", 3.0 * copied + experts + 1.0 + s_.tokens);
  sends_ = statistic("sends", copied / ranks + 2.0 * (ranks + 1.0));
  streaming("order", OperatorKind::order_copies, choices, gates_, {copied}, copied).statistics = {
      routes_, sends_};
  const Expr expected = own * ranks_of_token(m_);
  sent_ = activation("sent", s_.hidden);
  const TensorId all = activation("arrived", s_.hidden);
  segment_.tensor(sent_).rows = own * min(double(copies), ranks);
  segment_.tensor(sent_).sent = segment_.tensor(sent_).remade = true;
  segment_.tensor(all).arrives = true;
  streaming("send", OperatorKind::dispatch, normed, sent_, {expected, s_.hidden},
            expected * s_.hidden)
      .routes = sends_;
  travel("send tokens", OperatorKind::send_rows, sent_, all);
  return all;
}

/// The exchange of tokens with the ranks of their experts, or the way back.
void SegmentList::travel(std::string name, OperatorKind kind, TensorId read, TensorId written) {
  exchange(std::move(name), kind, read, written, sum_axes(segment_.kind));
  Operator& op = segment_.operators.back();
  op.routes = sends_;
  op.expected_bytes = s_.tokens / sum_ranks(segment_.kind) * ranks_of_token(m_) * s_.hidden *
                      double(segment_.activation_bytes);
}

/// @return what the experts' last products read
TensorId SegmentList::experts(TensorId normed) {
  // A token's experts differ, so a rank has at most as many of its copies as it has experts.
  const int copies = m_.experts_per_token;
  const Expr copied = double(copies) * s_.tokens, all = m_.num_experts;
  const Expr factor = select(less(1.0, s_.ep), m_.rank_load_factor, 1.0);
  const Expr of_token = min(double(copies), all / s_.ep);
  held_ = min(ceil(factor * copied / s_.ep), of_token * s_.tokens);
  // Tests exchange what all tokens have.
  room_ = m_.exchanges_normed ? of_token * s_.tokens : max(held_, of_token);
  if (dispatches_)
    normed = arrived(normed, all, copies);
  else
    choose(normed, all, copies);
  const TensorId dispatched = held("dispatched", s_.hidden);
  segment_.tensor(dispatched).remade = dispatches_;
  streaming("dispatch", OperatorKind::dispatch, normed, dispatched, {held_, s_.hidden},
            held_ * s_.hidden)
      .routes = routes_;
  const TensorId wide = held("wide", s_.mlp_in_tp);
  product("in", OperatorKind::experts, dispatched, wide,
          {{Module::experts_in}, s_.mlp_in_tp, s_.hidden});
  if (m_.linear_bias) epilogue("in bias", wide, wide, {Module::experts_in});
  adapt("in", dispatched, wide, {{Module::experts_in, s_.mlp_in_tp}}, OperatorKind::experts);
  const TensorId activated = held("activated", s_.ffn_tp);
  const OperatorKind kind = activation_kind();
  Operator& gated =
      streaming(name(kind), kind, wide, activated, {held_, s_.ffn_tp}, held_ * s_.mlp_in_tp);
  gated.gates = gates_;
  gated.routes = routes_;
  return activated;
}

/// The experts' last products, and their sums.
void SegmentList::combine(TensorId read, TensorId written) {
  const TensorId returned = held("returned", s_.hidden);
  product("out", OperatorKind::experts, read, returned,
          {{Module::experts_out}, s_.hidden, s_.ffn_tp});
  if (m_.linear_bias) {
    segment_.operators.back().gates = gates_;  // what the product reads has them, its bias not
    epilogue("out bias", returned, returned, {Module::experts_out});
  }
  adapt("out", read, returned, {{Module::experts_out, s_.hidden}}, OperatorKind::experts);
  const TensorId sums = dispatches_ ? activation("left", s_.hidden) : written;
  streaming("combine", OperatorKind::combine, returned, sums, {held_, s_.hidden}, held_ * s_.hidden)
      .routes = routes_;
  if (!dispatches_) return;
  // A rank adds the terms of its tokens in the order of ranks.
  const TensorId back = activation("back", s_.hidden);
  segment_.tensor(sums).arrives = segment_.tensor(back).sent = true;
  segment_.tensor(back).rows = segment_.tensor(sent_).rows;
  travel("return tokens", OperatorKind::return_rows, sums, back);
  const Expr expected = s_.tokens / sum_ranks(segment_.kind) * ranks_of_token(m_);
  streaming("sum", OperatorKind::combine, back, written, {expected, s_.hidden},
            expected * s_.hidden)
      .routes = sends_;
}

Segment SegmentList::embedding() {
  const Expr elements = s_.tokens * s_.hidden;
  streaming("embedding", OperatorKind::embedding, TensorId::input, TensorId::output,
            {s_.tokens, s_.hidden, s_.vocab_tp}, elements)
      .modules = {Module::token, Module::position};
  return derived();
}

Segment SegmentList::layer() {
  const SegmentKind kind = segment_.kind;
  const bool parallel = kind == SegmentKind::parallel;
  struct Branch {
    TensorId inner;
    Module out, post_norm;
    const char* norm_name;
    const char* name = "out";  ///< of the last product
  };
  std::vector<Branch> branches;
  std::vector<Module> outs;
  const bool attention_first = attends(kind), two = parallel && m_.layer_norms == 2;
  const std::string first = attention_first ? "norm1" : "norm2";
  TensorId normed_input = normed(first, attention_first ? Module::norm1 : Module::norm2);
  // All that is gathered comes first.
  std::optional<TensorId> second;
  if (two && cuts_tokens_) second = normed("norm2", Module::norm2);
  normed_input = exchanged(first, normed_input);
  if (attention_first)
    branches.push_back(
        {attention(normed_input), Module::attention_out, Module::post_norm1, "post_norm1"});
  if (two) normed_input = exchanged("norm2", second ? *second : normed("norm2", Module::norm2));
  if (kind == SegmentKind::experts) {
    branches.push_back(
        {experts(normed_input), Module::experts_out, Module::post_norm2, "post_norm2"});
    if (m_.shared_expert_ffn_size > 0)
      branches.push_back({shared_expert(normed_input), Module::shared_out, Module::post_norm2,
                          "post_norm2", "shared out"});
  } else if (parallel || !attends(kind)) {
    const Inner inner{.prefix = "",
                      .in = Module::mlp_in,
                      .gate = Module::mlp_gate,
                      .up = Module::mlp_up,
                      .in_width = s_.mlp_in_tp,
                      .width = s_.ffn_tp};
    branches.push_back(
        {mlp(normed_input, inner), Module::mlp_out, Module::post_norm2, "post_norm2"});
  }
  for (const Branch& branch : branches) outs.push_back(branch.out);
  // Tokens that were sent come back summed.
  const bool terms_left = cuts_tokens_ && !dispatches_, sums = terms_left && !m_.post_norms();
  const TensorId end = sums ? activation("terms", s_.hidden) : TensorId::output;
  if (!sums)
    epilogue("residual", TensorId::input, TensorId::output, outs);
  else if (m_.linear_bias)
    epilogue("out bias", end, end, outs);
  for (const Branch& branch : branches) {
    const auto out = [&](TensorId written) {
      if (branch.out == Module::experts_out) return combine(branch.inner, written);
      linear(branch.name, branch.inner, written, {branch.out});
      adapt(branch.name, branch.inner, written, {{branch.out, s_.hidden}});
    };
    if (!m_.post_norms()) {
      out(end);
      continue;
    }
    // A norm needs whole sums, so each of several ranks norms its rows of them.
    const std::string name = branch.norm_name;
    const TensorId read = of_own(name + ".in", s_.hidden);
    const TensorId terms = terms_left ? activation(name + ".terms", s_.hidden) : read;
    out(terms);
    if (terms_left) {
      exchange("sum", OperatorKind::reduce_scatter, terms, read, sum_axes(kind));
    }
    norm(name, branch.post_norm, read, TensorId::output);
  }
  if (sums) {
    exchange("sum", OperatorKind::reduce_scatter, end, TensorId::output, sum_axes(kind));
    const Tensor& rows = segment_.tensor(TensorId::output);
    streaming("residual", OperatorKind::residual, TensorId::input, TensorId::output,
              {rows.rows, rows.columns}, rows.elements())
        .backward_flops = 0.0;
  }
  return derived();
}

Segment SegmentList::head() {
  const TensorId normed = activation("norm.out", s_.hidden);
  norm("norm", Module::head_norm, TensorId::input, normed);
  const std::vector<Module> table{m_.tied_head ? Module::token : Module::head};
  if (m_.generates()) {
    Tensor& logits = segment_.tensor(TensorId::output);
    logits.columns = s_.vocab_tp, logits.element_bytes = statistic_bytes;
    product("logits", OperatorKind::logits, normed, TensorId::output,
            {table, s_.vocab_tp, s_.hidden});
    return derived();
  }
  const TensorId logits = activation("d_logits", s_.vocab_tp);
  product("logits", OperatorKind::matmul, normed, logits, {table, s_.vocab_tp, s_.hidden});
  if (m_.tied_head) segment_.operators.back().trained = double(m_.trains_table());
  streaming("cross_entropy", OperatorKind::cross_entropy, logits, logits, {s_.tokens, s_.vocab_tp},
            s_.tokens * s_.vocab_tp)
      .statistics = {statistic("statistics", less(1.0, s_.tp) * s_.tp * s_.tokens * 3.0)};
  return derived();
}

}  // namespace

const char* name(SegmentKind kind) {
  switch (kind) {
    case SegmentKind::embedding: return "embedding";
    case SegmentKind::attention: return "attention";
    case SegmentKind::window: return "window";
    case SegmentKind::mlp: return "mlp";
    case SegmentKind::experts: return "experts";
    case SegmentKind::parallel: return "parallel";
    case SegmentKind::head: return "head";
  }
  return "";
}

Segment segment(const Config& config, SegmentKind kind, Division division) {
  SegmentList list(config, kind, division);
  switch (kind) {
    case SegmentKind::embedding: return list.embedding();
    case SegmentKind::head: return list.head();
    default: return list.layer();
  }
}

std::vector<SegmentKind> segment_kinds(const Config& config, BlockKind kind, LayerKind layer) {
  switch (kind) {
    case BlockKind::embedding: return {SegmentKind::embedding};
    case BlockKind::layer:
      if (config.parallel()) return {SegmentKind::parallel};
      return {layer.window ? SegmentKind::window : SegmentKind::attention,
              layer.dense ? SegmentKind::mlp : config.inner_kind()};
    case BlockKind::head: return {SegmentKind::head};
  }
  return {};
}

std::vector<SegmentKind> segment_kinds(const Config& config) {
  std::vector<SegmentKind> all = segment_kinds(config, BlockKind::embedding);
  const auto add = [&](const std::vector<SegmentKind>& kinds) {
    for (SegmentKind kind : kinds)
      if (std::ranges::find(all, kind) == all.end()) all.push_back(kind);
  };
  for (const auto& [layer, count] : layer_counts(config))
    add(segment_kinds(config, BlockKind::layer, layer));
  add(segment_kinds(config, BlockKind::head));
  return all;
}

std::vector<Kept> kept_tensors(const Config& config, Recompute recompute, LayerKind layer,
                               Division division) {
  const Expr input = stream_shard_bytes(config);
  std::vector<SegmentKind> kinds = segment_kinds(config, BlockKind::layer, layer);
  if (recompute == Recompute::full) return {{kinds.front(), -1, input}};
  std::vector<Kept> kept;
  std::ranges::reverse(kinds);
  for (SegmentKind kind : kinds) {
    const Segment described = segment(config, kind, division);
    for (std::size_t i = 0; i < described.saved.size(); ++i)
      if (recompute == Recompute::none || !described.saved[i].cheap)
        kept.push_back({kind, int(i), described.saved[i].bytes()});
    kept.push_back({kind, -1, input});
  }
  // Fewer, longer copies. The order must not depend on the plan, so sizes are those of one rank.
  std::ranges::stable_sort(kept, std::greater<>{}, [](const Kept& tensor) {
    return tensor.bytes.evaluate(Split{}.values());
  });
  return kept;
}

Expr cache_bytes(const Config& config) {
  const double tokens = double(config.generation.blocks) * config.generation.block_tokens;
  const Expr columns = config.keeps_latents() ? Expr(config.rotary_dim() + config.kv_lora_rank)
                                              : Sizes(config).keys_tp;
  return 2.0 * double(activation_bytes(config.precision)) * tokens * columns;
}

HeadPieces head_pieces(const Config& config) {
  if (config.generates())
    return {double(std::min(config.generation.tokens, config.generation.sequences)), 1.0};
  const Expr tokens = Sizes(config).tokens;
  const Expr each = ceil(tokens / ceil(tokens / double(config.head_tokens)));
  return {each, ceil(tokens / each)};
}

Expr stream_elements(const Config& config) {
  const Sizes s(config);
  return s.tokens * s.hidden;
}

Expr stream_bytes(const Config& config) {
  return double(activation_bytes(config.precision)) * stream_elements(config);
}

Expr stream_bytes(const Config& config, SegmentKind kind) {
  const Expr bytes = stream_bytes(config);
  return kind == SegmentKind::experts ? bytes * expert_data_ranks(config) : bytes;
}

Expr expert_data_ranks(const Config& config) {
  if (config.num_experts == 0) return 1.0;
  return max(Expr::variable("ep") / Expr::variable("tp"), 1.0);
}

Expr ranks_of_token(const Config& config) {
  const double all = config.num_experts;
  const Expr ranks = sum_ranks(SegmentKind::experts), others = all - all / ranks;
  Expr none = 1.0;  // of its experts is on a rank
  for (int i = 0; i < config.experts_per_token; ++i)
    none = none * (max(others - double(i), 0.0) / (all - double(i)));
  return ranks * (1.0 - none);
}

Expr stream_shard_bytes(const Config& config) { return stream_bytes(config) / Sizes(config).tp; }

double flops_per_sequence(const Config& config) {
  double flops = 0.0;
  // Zeros that widen values are no work of the model.
  const double of_scores = 0.5 + 0.5 * config.v_head_dim() / config.head_dim();
  Config whole = config;
  whole.head_tokens = config.seq_len;
  const auto add = [&](const std::vector<SegmentKind>& kinds, double forwards, double backwards) {
    for (SegmentKind kind : kinds)
      for (const Operator& op : segment(whole, kind).operators)
        if (is_product(op.kind) || op.kind == OperatorKind::router ||
            op.kind == OperatorKind::attention)
          flops += (op.kind == OperatorKind::attention ? of_scores : 1.0) *
                   (forwards + backwards * (1.0 + op.trained)) * op.share *
                   op.forward_flops.evaluate(Split{}.values());
  };
  for (const auto& [kind, count] : layer_counts(config)) {
    int trained = 0;
    for (int layer = 0; layer < config.num_layers; ++layer)
      trained += config.layer_kind(layer) == kind && config.has_backward(layer + 1);
    add(segment_kinds(config, BlockKind::layer, kind), count, trained);
  }
  add(segment_kinds(config, BlockKind::head), 1.0, 1.0);
  return flops;
}

}  // namespace brume::model
