/// @file What each segment computes, saves and needs, as expressions in b and tp.
#include <algorithm>
#include <functional>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "heads.hpp"
#include "model/model.hpp"

namespace brume::model {
namespace {

/// Sizes a segment's formulas speak of.
struct Sizes {
  explicit Sizes(const Config& m)
      : b(Expr::variable("b")),
        tp(Expr::variable("tp")),
        seq(m.seq_len),
        tokens(b * seq),
        hidden(m.hidden_size),
        heads_tp(Expr(m.num_heads) / tp),
        head_dim(m.head_dim()),
        attended_tp(Expr(m.attention_size()) / tp),
        keys_tp(m.kv_heads() == m.num_heads ? attended_tp : local_heads(m.kv_heads()) * head_dim),
        qkv_tp(m.kv_heads() == m.num_heads ? 3.0 * attended_tp : attended_tp + 2.0 * keys_tp),
        ffn_tp(Expr(m.ffn_size) / tp),
        mlp_in_tp(Expr(m.mlp_in_size()) / tp),
        vocab_tp(ceil(double(m.vocab_size) / tp)),
        product(m.precision == Precision::fp8 ? OperatorKind::matmul_fp8 : OperatorKind::matmul),
        activation_bytes(model::activation_bytes(m.precision)) {}
  Expr b, tp, seq, tokens, hidden, heads_tp, head_dim;
  Expr attended_tp, keys_tp,
      qkv_tp;  ///< features of this rank's query heads, key heads, q, k and v
  Expr ffn_tp, mlp_in_tp, vocab_tp;
  OperatorKind product;  ///< of a layer
  int activation_bytes;  ///< of an element
};

/// [M, K] x [K, N]: backward makes both gradients, so it costs twice the forward.
Operator matmul(std::string name, const Expr& m, const Expr& n, const Expr& k,
                OperatorKind kind = OperatorKind::matmul) {
  const Expr flops = 2.0 * m * n * k;
  const Expr bytes = 4.0 * (m * k + k * n + m * n);
  return {std::move(name), kind, {m, n, k}, flops, 2.0 * flops, bytes, 2.0 * bytes};
}

/// A pass over memory: so many reads and writes per element, forward and backward.
Operator streaming(std::string name, OperatorKind kind, std::vector<Expr> dims,
                   const Expr& elements, double forward_accesses, double backward_accesses) {
  return {std::move(name),
          kind,
          std::move(dims),
          8.0 * elements,
          16.0 * elements,
          4.0 * forward_accesses * elements,
          4.0 * backward_accesses * elements};
}

/// Knows how much is trained of the parameters of blocks that have a backward.
class TrainedShares {
 public:
  explicit TrainedShares(const Config& m) {
    if (m.frozen_parameters.empty()) return;
    const std::vector<Block> blocks = model::blocks(m);
    for (auto block = blocks.begin() + m.frozen_blocks; block != blocks.end(); ++block)
      parameters_.insert(parameters_.end(), block->parameters.begin(), block->parameters.end());
  }

  /// @return the share that is trained of the parameters whose names end so; 1 where there are none
  double of(std::initializer_list<std::string_view> names) const {
    std::int64_t all = 0, trained = 0;
    for (const Parameter& one : parameters_) {
      const auto ends = [&](std::string_view name) { return one.name.ends_with(name); };
      if (std::ranges::none_of(names, ends)) continue;
      all += one.elements();
      if (!one.frozen) trained += one.elements();
    }
    return all > 0 ? double(trained) / double(all) : 1.0;
  }

 private:
  std::vector<Parameter> parameters_;  ///< empty where all are trained
};

Operator bias_and_residual(std::string name, const Expr& elements) {
  return streaming(std::move(name), OperatorKind::pointwise, {elements}, elements, 2, 1);
}

/// Adds a norm and what it saves.
void add_norm(Segment& segment, const Config& m, const Sizes& s, const std::string& name,
              bool before_products = false) {
  const bool layer = m.norm() == NormKind::layer;
  segment.operators.push_back(streaming(name,
                                        layer ? OperatorKind::layer_norm : OperatorKind::rms_norm,
                                        {s.tokens, s.hidden}, s.tokens * s.hidden, 2, 5));
  const auto save = [&](const char* what) {
    segment.saved.push_back({name + what, s.tokens, statistic_bytes, false, before_products});
  };
  if (layer) save(".mean");
  save(".rstd");
}

/// Of the pairs of a query and a key before it, T^2 / 2, those within the window and, in the mean,
/// within a document. Where there are both, the smaller share is what is left at most.
double visible_share(const Config& m, SegmentKind kind) {
  if (kind != SegmentKind::window) return m.document_share;
  const double window = double(std::min(m.window, m.seq_len)) / m.seq_len;
  return std::min(m.document_share, window * (2.0 - window));
}

void add_attention(Segment& segment, const Config& m, const Sizes& s,
                   const TrainedShares& trained) {
  segment.operators.push_back(matmul("qkv", s.tokens, s.qkv_tp, s.hidden, s.product));
  segment.operators.back().trained =
      trained.of({".qkv.weight", ".attention.q.weight", ".kv.weight"});
  if (m.qkv_bias) {
    segment.operators.push_back(bias_and_residual("qkv bias", s.tokens * s.qkv_tp));
    segment.operators.back().trained = trained.of({".qkv.bias", ".attention.q.bias", ".kv.bias"});
  }
  const Expr turned = s.attended_tp + s.keys_tp;  // features of queries and keys
  if (m.qk_norm) {
    const Expr heads = s.tokens * (turned / s.head_dim);
    segment.operators.push_back(
        streaming("qk norm", OperatorKind::rms_norm, {heads, s.head_dim}, s.tokens * turned, 2, 5));
    segment.saved.push_back({"qk.rstd", heads, statistic_bytes});
  }
  if (m.rotary()) {
    segment.operators.push_back(streaming("rope", OperatorKind::rope,
                                          {s.tokens, turned / s.head_dim, s.head_dim},
                                          s.tokens * turned, 2, 2));
  }
  const Expr flops = 2.0 * s.tokens * s.seq * s.attended_tp;  // half of the square: causal
  segment.operators.push_back({"attention",
                               OperatorKind::attention,
                               {s.b, s.seq, s.heads_tp, s.head_dim},
                               flops,
                               2.5 * flops,
                               16.0 * s.tokens * s.attended_tp,
                               32.0 * s.tokens * s.attended_tp,
                               false,
                               visible_share(m, segment.kind)});
  segment.saved.push_back({"qkv", s.tokens * s.qkv_tp, s.activation_bytes});
  segment.saved.push_back({"attended", s.tokens * s.attended_tp, s.activation_bytes, false, true});
  segment.saved.push_back({"lse", s.b * s.heads_tp * s.seq, statistic_bytes});
}

void add_mlp(Segment& segment, const Config& m, const Sizes& s, const TrainedShares& trained) {
  static constexpr OperatorKind kinds[] = {OperatorKind::gelu, OperatorKind::gelu_erf,
                                           OperatorKind::swiglu, OperatorKind::geglu};
  segment.operators.push_back(matmul("in", s.tokens, s.mlp_in_tp, s.hidden, s.product));
  segment.operators.back().trained = trained.of({".mlp.in.weight"});
  const OperatorKind kind = kinds[std::size_t(m.mlp())];
  segment.operators.push_back(
      streaming(name(kind), kind, {s.tokens, s.ffn_tp}, s.tokens * s.mlp_in_tp, 2, 5));
  segment.saved.push_back({"wide", s.tokens * s.mlp_in_tp, s.activation_bytes, false, true});
}

/// Whether it makes what a backward makes again: a norm, or the MLP's activation.
bool is_cheap(OperatorKind kind) {
  switch (kind) {
    case OperatorKind::layer_norm:
    case OperatorKind::rms_norm:
    case OperatorKind::gelu:
    case OperatorKind::gelu_erf:
    case OperatorKind::swiglu:
    case OperatorKind::geglu: return true;
    default: return false;
  }
}

/// What products and attention of a layer's segment read and a backward can make again from the
/// segment's input and its other saved tensors. A norm's output is one of all tokens.
void add_cheap(Segment& segment, const Config& m, const Sizes& s) {
  const auto add = [&](std::string name, const Expr& columns, bool for_weights = true) {
    segment.saved.push_back(
        {std::move(name), s.tokens * columns, s.activation_bytes, true, for_weights});
  };
  int norm = 0;
  for (const Branch& branch : branches(m, segment.kind)) {
    if (branch.norm != norm) add("norm" + std::to_string(branch.norm) + ".out", s.hidden);
    norm = branch.norm;
    if (branch.kind == BranchKind::mlp) add("activated", s.ffn_tp);
    if (branch.kind == BranchKind::attention && m.qk_norm) add("qk.out", s.qkv_tp, false);
  }
}

/// Forward: a normed input, later the MLP's activation in its place. Backward: the gradients of all
/// branches' first products, and beside them in one place what each branch's last product read or
/// its gradient, later a normed input and its gradient. Where queries and keys have norms, what is
/// kept is from before these, and what attention reads is made in both passes. Norms behind the
/// last products keep what these made, and a backward begins with its gradient, which stays, too.
Segment layer_segment(const Config& m, const Sizes& s, SegmentKind kind) {
  Segment segment{kind, {}, {}, s.tokens * s.hidden, 0.0, s.activation_bytes};
  const std::vector<Branch> all = branches(m, kind);
  const TrainedShares trained(m);
  Expr beside = s.tokens * s.hidden;
  segment.weights_workspace_elements = beside;
  int norm = 0;
  for (const Branch& branch : all) {
    if (branch.norm != norm) add_norm(segment, m, s, "norm" + std::to_string(branch.norm), true);
    norm = branch.norm;
    const bool attention = branch.kind == BranchKind::attention;
    (attention ? add_attention : add_mlp)(segment, m, s, trained);
    const Expr inner = s.tokens * (attention ? s.attended_tp : s.ffn_tp);
    const Expr normed_qkv = attention && m.qk_norm ? s.tokens * s.qkv_tp : Expr(0.0);
    if (!attention || m.qk_norm)
      segment.forward_workspace_elements =
          max(segment.forward_workspace_elements, attention ? normed_qkv : inner);
    beside = max(beside, attention && m.qk_norm ? inner + normed_qkv : inner);
    if (!attention)
      segment.weights_workspace_elements = max(segment.weights_workspace_elements, inner);
    segment.product_grads_elements += s.tokens * (attention ? s.qkv_tp : s.mlp_in_tp);
  }
  for (Operator& op : segment.operators) op.again = is_cheap(op.kind);
  if (m.post_norms()) segment.product_grads_elements += s.tokens * s.hidden;
  segment.backward_workspace_elements = segment.product_grads_elements + beside;
  segment.operators.push_back(bias_and_residual("residual", s.tokens * s.hidden));
  segment.operators.back().trained = trained.of({".out.bias"});
  for (const Branch& branch : all) {
    const bool attention = branch.kind == BranchKind::attention;
    segment.operators.push_back(
        matmul("out", s.tokens, s.hidden, attention ? s.attended_tp : s.ffn_tp, s.product));
    segment.operators.back().output_only = !m.post_norms();
    segment.operators.back().trained =
        trained.of({attention ? ".attention.out.weight" : ".mlp.out.weight"});
    if (!m.post_norms()) continue;
    const std::string name = "post_norm" + std::to_string(branch.norm);
    add_norm(segment, m, s, name);
    segment.saved.push_back({name + ".in", s.tokens * s.hidden, s.activation_bytes});
  }
  add_cheap(segment, m, s);
  return segment;
}

Segment embedding(const Sizes& s) {
  const Expr elements = s.tokens * s.hidden;
  return {SegmentKind::embedding,
          {streaming("embedding", OperatorKind::embedding, {s.tokens, s.hidden, s.vocab_tp},
                     elements, 3, 5)},
          {},
          0.0,
          0.0,
          s.activation_bytes};
}

Segment head(const Config& m, Sizes s) {
  s.tokens = head_pieces(m).tokens;
  Segment segment{SegmentKind::head, {}, {}, s.tokens * s.hidden, s.tokens * s.hidden,
                  s.activation_bytes};
  add_norm(segment, m, s, "norm");
  segment.operators.push_back(matmul("logits", s.tokens, s.vocab_tp, s.hidden));
  segment.operators.back().trained =
      m.tied_head ? double(m.trains_table()) : TrainedShares(m).of({"head.weight"});
  segment.operators.push_back(streaming("cross_entropy", OperatorKind::cross_entropy,
                                        {s.tokens, s.vocab_tp}, s.tokens * s.vocab_tp, 3, 0));
  segment.saved.push_back({"d_logits", s.tokens * s.vocab_tp, s.activation_bytes});
  segment.saved.push_back({"statistics", less(1.0, s.tp) * s.tp * s.tokens * 3.0, statistic_bytes});
  return segment;
}

}  // namespace

const char* name(OperatorKind kind) {
  switch (kind) {
    case OperatorKind::matmul: return "matmul";
    case OperatorKind::matmul_fp8: return "matmul_fp8";
    case OperatorKind::attention: return "attention";
    case OperatorKind::layer_norm: return "layer_norm";
    case OperatorKind::rms_norm: return "rms_norm";
    case OperatorKind::rope: return "rope";
    case OperatorKind::gelu: return "gelu";
    case OperatorKind::gelu_erf: return "gelu_erf";
    case OperatorKind::swiglu: return "swiglu";
    case OperatorKind::geglu: return "geglu";
    case OperatorKind::pointwise: return "pointwise";
    case OperatorKind::embedding: return "embedding";
    case OperatorKind::cross_entropy: return "cross_entropy";
    case OperatorKind::update: return "update";
  }
  return "";
}

const char* name(SegmentKind kind) {
  switch (kind) {
    case SegmentKind::embedding: return "embedding";
    case SegmentKind::attention: return "attention";
    case SegmentKind::window: return "window";
    case SegmentKind::mlp: return "mlp";
    case SegmentKind::parallel: return "parallel";
    case SegmentKind::head: return "head";
  }
  return "";
}

std::vector<Branch> branches(const Config& config, SegmentKind kind) {
  switch (kind) {
    case SegmentKind::attention:
    case SegmentKind::window: return {{BranchKind::attention, 1}};
    case SegmentKind::mlp: return {{BranchKind::mlp, 2}};
    case SegmentKind::parallel:
      return {{BranchKind::attention, 1}, {BranchKind::mlp, config.layer_norms}};
    default: return {};
  }
}

Segment segment(const Config& config, SegmentKind kind) {
  const Sizes sizes(config);
  switch (kind) {
    case SegmentKind::embedding: return embedding(sizes);
    case SegmentKind::attention:
    case SegmentKind::window:
    case SegmentKind::mlp:
    case SegmentKind::parallel: return layer_segment(config, sizes, kind);
    case SegmentKind::head: return head(config, sizes);
  }
  throw Error(Failure::bug, "unknown segment");
}

std::vector<SegmentKind> segment_kinds(const Config& config, BlockKind kind, LayerKind layer) {
  switch (kind) {
    case BlockKind::embedding: return {SegmentKind::embedding};
    case BlockKind::layer:
      if (config.parallel()) return {SegmentKind::parallel};
      return {layer == LayerKind::window ? SegmentKind::window : SegmentKind::attention,
              SegmentKind::mlp};
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

std::vector<Kept> kept_tensors(const Config& config, Recompute recompute, LayerKind layer) {
  const Expr input = stream_shard_bytes(config);
  std::vector<SegmentKind> kinds = segment_kinds(config, BlockKind::layer, layer);
  if (recompute == Recompute::full) return {{kinds.front(), -1, input}};
  std::vector<Kept> kept;
  std::ranges::reverse(kinds);
  for (SegmentKind kind : kinds) {
    const Segment described = segment(config, kind);
    for (std::size_t i = 0; i < described.saved.size(); ++i)
      if (recompute == Recompute::none || !described.saved[i].cheap)
        kept.push_back({kind, int(i), described.saved[i].bytes()});
    kept.push_back({kind, -1, input});
  }
  // Fewer, longer copies. The order must not depend on the plan, so sizes are those of b = tp = 1.
  std::ranges::stable_sort(kept, std::greater<>{}, [](const Kept& tensor) {
    return tensor.bytes.evaluate({{"b", 1.0}, {"tp", 1.0}});
  });
  return kept;
}

HeadPieces head_pieces(const Config& config) {
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

Expr stream_shard_bytes(const Config& config) { return stream_bytes(config) / Sizes(config).tp; }

namespace {

bool is_product(OperatorKind kind) {
  return kind == OperatorKind::matmul || kind == OperatorKind::matmul_fp8;
}

}  // namespace

double flops_per_sequence(const Config& config) {
  double flops = 0.0;
  Config whole = config;
  whole.head_tokens = config.seq_len;
  const auto add = [&](const std::vector<SegmentKind>& kinds, double forwards, double backwards) {
    for (SegmentKind kind : kinds)
      for (const Operator& op : segment(whole, kind).operators)
        if (is_product(op.kind) || op.kind == OperatorKind::attention)
          flops += (forwards + backwards * (1.0 + op.trained)) * op.share *
                   op.forward_flops.evaluate({{"b", 1.0}, {"tp", 1.0}});
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
