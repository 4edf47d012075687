/// @file The segments of a model: their kinds, operators, kept tensors and FLOPs.
#include <algorithm>
#include <functional>

#include "segment_list.hpp"

namespace brume::model {

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
    if (m_.shared_expert_ffn_size > 0 && !dispatches_)
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
      add_product(branch.name, branch.inner, written, branch.out);
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
    for (std::size_t i = 0; i < described.saved.size() && !is_tiled(kind, division); ++i)
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

double flops_per_sequence(const Config& config) {
  double flops = 0.0;
  // Zeros that widen values are no work of the model.
  const double of_scores = 0.5 + 0.5 * config.v_head_dim() / config.head_dim();
  Config whole = config;
  whole.head_tokens = config.seq_len;
  whole.padding = 0;
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
