/// @file What each segment of a GPT computes, saves and needs, as expressions in b and tp.
#include "base/error.hpp"
#include "model/model.hpp"

namespace brume::model {
namespace {

/// Scratch of one attention call beside its per-token numbers [elements]; see
/// kernels/attention.hpp.
constexpr double attention_block_elements = 64 * 1024;

/// Sizes a segment's formulas speak of.
struct Sizes {
  explicit Sizes(const Config& m)
      : b(Expr::variable("b")),
        tp(Expr::variable("tp")),
        seq(m.seq_len),
        tokens(b * seq),
        hidden(m.hidden_size),
        hidden_tp(hidden / tp),
        ffn_tp(Expr(m.ffn_size) / tp),
        heads_tp(Expr(m.num_heads) / tp),
        head_dim(m.head_dim()),
        vocab(m.vocab_size) {}
  Expr b, tp, seq, tokens, hidden, hidden_tp, ffn_tp, heads_tp, head_dim, vocab;
};

/// [M, K] x [K, N]: backward makes both gradients, so it costs twice the forward.
Operator matmul(std::string name, const Expr& m, const Expr& n, const Expr& k) {
  const Expr flops = 2.0 * m * n * k;
  const Expr bytes = 4.0 * (m * k + k * n + m * n);
  return {std::move(name), OperatorKind::matmul, {m, n, k}, flops, 2.0 * flops, bytes, 2.0 * bytes};
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

Operator layer_norm(std::string name, const Sizes& s) {
  return streaming(std::move(name), OperatorKind::layer_norm, {s.tokens, s.hidden},
                   s.tokens * s.hidden, 2, 5);
}

Operator bias_and_residual(std::string name, const Expr& elements) {
  return streaming(std::move(name), OperatorKind::pointwise, {elements}, elements, 2, 1);
}

std::vector<Saved> norm_statistics(const Sizes& s) {
  return {{"mean", s.tokens}, {"rstd", s.tokens}};
}

Segment embedding(const Sizes& s) {
  const Expr elements = s.tokens * s.hidden;
  return {SegmentKind::embedding,
          {streaming("embedding", OperatorKind::embedding, {s.tokens, s.hidden, s.vocab}, elements,
                     3, 5)},
          {},
          0.0,
          0.0};
}

Segment attention(const Sizes& s) {
  Segment segment{SegmentKind::attention, {}, norm_statistics(s), 0.0, 0.0};
  segment.operators.push_back(layer_norm("norm1", s));
  segment.operators.push_back(matmul("qkv", s.tokens, 3.0 * s.hidden_tp, s.hidden));
  segment.operators.push_back(bias_and_residual("qkv bias", 3.0 * s.tokens * s.hidden_tp));
  const Expr flops = 2.0 * s.tokens * s.seq * s.hidden_tp;  // half of the square: causal
  segment.operators.push_back({"attention",
                               OperatorKind::attention,
                               {s.b, s.seq, s.heads_tp, s.head_dim},
                               flops,
                               2.5 * flops,
                               16.0 * s.tokens * s.hidden_tp,
                               32.0 * s.tokens * s.hidden_tp});
  segment.operators.push_back(bias_and_residual("residual", s.tokens * s.hidden));
  segment.operators.push_back(matmul("out", s.tokens, s.hidden, s.hidden_tp));

  segment.saved.push_back({"qkv", 3.0 * s.tokens * s.hidden_tp});
  segment.saved.push_back({"attended", s.tokens * s.hidden_tp});
  segment.saved.push_back({"lse", s.b * s.heads_tp * s.seq});
  // Per token and head one number, and blocks of scores.
  const Expr scratch = s.tokens * s.heads_tp + attention_block_elements;
  // Forward: the normed input, later the attention's scratch. Backward: d qkv beside d attended and
  // scratch, later beside the normed input, whose place its gradient takes.
  segment.forward_workspace_elements = max(s.tokens * s.hidden, scratch);
  segment.backward_workspace_elements =
      3.0 * s.tokens * s.hidden_tp + max(s.tokens * s.hidden_tp + scratch, s.tokens * s.hidden);
  return segment;
}

Segment mlp(const Sizes& s) {
  Segment segment{SegmentKind::mlp, {}, norm_statistics(s), 0.0, 0.0};
  const Expr wide = s.tokens * s.ffn_tp;
  segment.operators.push_back(layer_norm("norm2", s));
  segment.operators.push_back(matmul("in", s.tokens, s.ffn_tp, s.hidden));
  segment.operators.push_back(
      streaming("gelu", OperatorKind::gelu, {s.tokens, s.ffn_tp}, wide, 2, 5));
  segment.operators.push_back(bias_and_residual("residual", s.tokens * s.hidden));
  segment.operators.push_back(matmul("out", s.tokens, s.hidden, s.ffn_tp));

  segment.saved.push_back({"wide", wide});
  // Forward: the normed input, later gelu's output. Backward: d wide beside gelu's output, later
  // beside the normed input.
  segment.forward_workspace_elements = max(s.tokens * s.hidden, wide);
  segment.backward_workspace_elements = wide + max(s.tokens * s.hidden, wide);
  return segment;
}

Segment head(const Sizes& s) {
  Segment segment{SegmentKind::head, {}, norm_statistics(s), 0.0, 0.0};
  segment.operators.push_back(layer_norm("norm", s));
  segment.operators.push_back(matmul("logits", s.tokens, s.vocab, s.hidden));
  segment.operators.push_back(streaming("cross_entropy", OperatorKind::cross_entropy,
                                        {s.tokens, s.vocab}, s.tokens * s.vocab, 3, 0));
  segment.saved.push_back({"d_logits", s.tokens * s.vocab});
  segment.forward_workspace_elements = s.tokens * s.hidden;
  segment.backward_workspace_elements = s.tokens * s.hidden;
  return segment;
}

}  // namespace

const char* name(OperatorKind kind) {
  switch (kind) {
    case OperatorKind::matmul: return "matmul";
    case OperatorKind::attention: return "attention";
    case OperatorKind::layer_norm: return "layer_norm";
    case OperatorKind::gelu: return "gelu";
    case OperatorKind::pointwise: return "pointwise";
    case OperatorKind::embedding: return "embedding";
    case OperatorKind::cross_entropy: return "cross_entropy";
    case OperatorKind::adamw: return "adamw";
  }
  return "";
}

const char* name(SegmentKind kind) {
  switch (kind) {
    case SegmentKind::embedding: return "embedding";
    case SegmentKind::attention: return "attention";
    case SegmentKind::mlp: return "mlp";
    case SegmentKind::head: return "head";
  }
  return "";
}

Segment segment(const Config& config, SegmentKind kind) {
  const Sizes sizes(config);
  switch (kind) {
    case SegmentKind::embedding: return embedding(sizes);
    case SegmentKind::attention: return attention(sizes);
    case SegmentKind::mlp: return mlp(sizes);
    case SegmentKind::head: return head(sizes);
  }
  throw Error(Failure::bug, "unknown segment");
}

std::vector<SegmentKind> segment_kinds(BlockKind kind) {
  switch (kind) {
    case BlockKind::embedding: return {SegmentKind::embedding};
    case BlockKind::layer: return {SegmentKind::attention, SegmentKind::mlp};
    case BlockKind::head: return {SegmentKind::head};
  }
  return {};
}

std::vector<Kept> kept_tensors(const Config& config, bool recomputed) {
  const Expr stream = stream_elements(config);
  if (recomputed) return {{SegmentKind::attention, -1, stream}};
  const auto saved = [&](SegmentKind kind, int index) {
    return Kept{kind, index, segment(config, kind).saved[std::size_t(index)].elements};
  };
  // Large tensors first: fewer, longer copies.
  return {saved(SegmentKind::mlp, 2),           saved(SegmentKind::attention, 2),
          {SegmentKind::mlp, -1, stream},       saved(SegmentKind::attention, 3),
          {SegmentKind::attention, -1, stream}, saved(SegmentKind::attention, 4),
          saved(SegmentKind::attention, 0),     saved(SegmentKind::attention, 1),
          saved(SegmentKind::mlp, 0),           saved(SegmentKind::mlp, 1)};
}

Expr stream_elements(const Config& config) {
  const Sizes s(config);
  return s.tokens * s.hidden;
}

double flops_per_sequence(const Config& config) {
  double flops = 0.0;
  const auto add = [&](SegmentKind kind, double times) {
    for (const Operator& op : segment(config, kind).operators)
      flops += times * (op.forward_flops + op.backward_flops).evaluate({{"b", 1.0}, {"tp", 1.0}});
  };
  add(SegmentKind::attention, config.num_layers);
  add(SegmentKind::mlp, config.num_layers);
  add(SegmentKind::head, 1.0);
  return flops;
}

Config config(const deck::ModelKeys& keys, std::string_view precision) {
  return {.family = Family::gpt,
          .num_layers = keys.num_layers,
          .hidden_size = keys.hidden_size,
          .num_heads = keys.num_heads,
          .ffn_size = keys.ffn_size == 0 ? 4 * keys.hidden_size : keys.ffn_size,
          .seq_len = keys.seq_len,
          .vocab_size = keys.vocab_size,
          .tied_head = keys.tied_head,
          .norm_eps = keys.norm_eps,
          .init_std = keys.init_std,
          .precision = precision == "bf16"   ? Precision::bf16
                       : precision == "fp16" ? Precision::fp16
                                             : Precision::fp32};
}

}  // namespace brume::model
