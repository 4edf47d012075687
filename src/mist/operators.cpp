/// @file The operators of Mist's layers, and what they cost under a profile.
#include <optional>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "mist/case.hpp"
#include "units.hpp"

namespace brume::mist {
namespace {

using Dims = std::vector<std::int64_t>;

/// Sizes on one rank.
struct Sizes {
  Sizes(const Model& model, int microbatch, int tp)
      : b(microbatch),
        seq(std::int64_t(model.sequence)),
        tokens(b * seq),
        hidden(std::int64_t(model.hidden)),
        hidden_tp(hidden / tp),
        ffn_tp(std::int64_t(model.ffn) / tp),
        heads_tp(std::int64_t(model.heads) / tp),
        head_dim(std::int64_t(model.hidden / model.heads)),
        vocab(std::int64_t(model.vocab)),
        vocab_tp(vocab / tp),
        stream_bytes(fp16_bytes * double(tokens * hidden)) {}
  std::int64_t b, seq, tokens, hidden, hidden_tp, ffn_tp, heads_tp, head_dim, vocab, vocab_tp;
  double stream_bytes;
};

/// Every rank of tp needs its input's gradient summed.
OperatorShape split_columns(const Sizes& s, std::int64_t columns, int tp) {
  return {"matmul", {s.tokens, columns, s.hidden}, 1, tp, 0.0, s.stream_bytes};
}

void add_plain_attention(const Sizes& s, std::vector<OperatorShape>& operators) {
  const std::int64_t rows = s.b * s.heads_tp;
  const Dims by_token{s.b, s.seq, s.heads_tp, s.head_dim, 1, 2};
  const Dims by_head{s.b, s.heads_tp, s.seq, s.head_dim, 1, 2};
  operators.push_back({"unbind", {s.b, s.seq, 3, s.heads_tp, s.head_dim}});
  operators.push_back({"transpose", by_token, 3});
  operators.push_back({"transpose", {s.b, s.heads_tp, s.seq, s.head_dim, 2, 3}});
  operators.push_back({"batched_matmul", {rows, s.seq, s.seq, s.head_dim}});
  operators.push_back({"softmax", {rows, s.seq, s.seq}});
  operators.push_back({"identity", {rows * s.seq, s.seq}});
  operators.push_back({"batched_matmul", {rows, s.seq, s.head_dim, s.seq}});
  operators.push_back({"transpose", by_head});
}

/// The all-reduces of forward stand alone there; without a backward they never count, and are left
/// out.
std::vector<OperatorShape> block(const Model& model, int microbatch, int tp) {
  const Sizes s(model, microbatch, tp);
  const bool gated = model.gated;
  const int norms = model.parallel ? 1 : 2;
  const Dims stream{s.tokens, s.hidden};
  std::vector<OperatorShape> operators;
  operators.push_back({gated ? "rms_norm" : "layer_norm", stream, norms});
  operators.push_back(split_columns(s, 3 * s.hidden_tp, tp));
  if (model.flash)
    operators.push_back({"attention", {s.b, s.seq, s.heads_tp, s.head_dim}});
  else
    add_plain_attention(s, operators);
  operators.push_back({"matmul", {s.tokens, s.hidden, s.hidden_tp}});
  operators.push_back({"dropout_inline", stream, norms});
  operators.push_back({"add", stream, 2});
  operators.push_back(split_columns(s, (gated ? 2 : 1) * s.ffn_tp, tp));
  if (gated) operators.push_back({"chunk", {s.b, s.seq, 2 * s.ffn_tp}});
  operators.push_back({gated ? "swiglu" : "gelu", {s.tokens, s.ffn_tp}});
  operators.push_back({"matmul", {s.tokens, s.hidden, s.ffn_tp}});
  operators.push_back({"view", stream});
  return operators;
}

std::vector<OperatorShape> embedding(const Model& model, int microbatch) {
  const Sizes s(model, microbatch, 1);
  const Dims stream{s.tokens, s.hidden};
  return {{"embedding", {s.tokens, s.hidden, s.vocab}}, {"dropout", stream}, {"view", stream}};
}

/// Cross entropy reduces three fp16 numbers a token: maximum, target's logit, sum of exponentials.
std::vector<OperatorShape> head(const Model& model, int microbatch, int tp) {
  const Sizes s(model, microbatch, tp);
  const double reduced = 3.0 * fp16_bytes * double(s.tokens);
  return {split_columns(s, s.vocab_tp, tp),
          {"cast", {s.tokens, s.vocab_tp}},
          {"cross_entropy", {s.tokens, s.vocab_tp}, 1, tp, reduced, 0.0},
          {"mean", {s.tokens}}};
}

struct Work {
  double flops;
  double bytes;
};

/// Forward, in fp16. What is no product passes over its elements: two reads and a write.
Work work_of(const OperatorShape& op) {
  const auto dim = [&](std::size_t i) { return double(op.dims[i]); };
  if (op.kind == "matmul" || op.kind == "batched_matmul") {
    const std::size_t first = op.kind == "matmul" ? 0 : 1;
    const double batch = first == 0 ? 1.0 : dim(0);
    const double m = dim(first), n = dim(first + 1), k = dim(first + 2);
    return {2.0 * batch * m * n * k, fp16_bytes * batch * (m * n + m * k + n * k)};
  }
  double elements = 1.0;
  for (std::size_t i = 0; i < op.dims.size(); ++i)
    if (op.kind != "embedding" || i < 2) elements *= dim(i);
  if (op.kind == "attention")  // causal: half of the square
    return {2.0 * elements * dim(1), fp16_bytes * 4.0 * elements};
  return {8.0 * elements, fp16_bytes * 3.0 * elements};
}

/// Views and operators that are off; Mist measures them all the same.
bool computes(const std::string& kind) {
  static const std::set<std::string> others{"chunk",     "dropout",  "dropout_inline",
                                            "cast",      "identity", "mean",
                                            "transpose", "unbind",   "view"};
  return !others.contains(kind);
}

/// Nothing for what has no row and does not compute.
std::optional<price::OperatorPrice> price(const hardware::Profile& profile,
                                          const OperatorShape& op) {
  using hardware::Source;
  if (const auto* row = hardware::measured_operator(profile, op.kind, op.dims, op.group))
    return price::OperatorPrice{"",
                                op.kind,
                                op.dims,
                                {row->forward_s, Source::measured},
                                {row->backward_s, Source::measured}};
  const Work work = work_of(op);
  if (!computes(op.kind) || work.flops == 0.0) return std::nullopt;
  const auto time = [&](bool backward) {
    const double passes = backward ? 2.0 : 1.0;
    return hardware::operator_time(profile, op.kind, op.dims, backward, passes * work.flops,
                                   passes * work.bytes);
  };
  return price::OperatorPrice{"", op.kind, op.dims, time(false), time(true)};
}

/// Gradients of a layer added to those of earlier microbatches.
OperatorShape accumulation(const Model& model, Layer layer, int tp) {
  const double bytes = layer == Layer::block       ? block_bytes(model, 0, tp).weights
                       : layer == Layer::embedding ? embedding_bytes(model, 0).weights
                                                   : head_bytes(model, 0, tp).weights;
  return {"pointwise", {std::int64_t(bytes / fp16_bytes)}};
}

}  // namespace

std::vector<OperatorShape> operators_of(const Model& model, Layer layer, int microbatch, int tp) {
  switch (layer) {
    case Layer::block: return block(model, microbatch, tp);
    case Layer::embedding: return embedding(model, microbatch);
    case Layer::head: return head(model, microbatch, tp);
  }
  throw Error(Failure::bug, "unknown layer");
}

LayerTime layer_time(const Model& model, const Hardware& hardware, const hardware::Profile& profile,
                     Layer layer, int microbatch, int tp) {
  const auto reduce_s = [&](double bytes) {
    return collective_s(hardware, Collective::all_reduce, bytes / bytes_per_gib, 1, tp);
  };
  std::vector<Operator> operators;
  for (const OperatorShape& op : operators_of(model, layer, microbatch, tp))
    if (const auto priced = price(profile, op))
      operators.push_back({op.count, priced->forward.seconds, priced->backward.seconds,
                           reduce_s(op.reduce_forward_bytes), reduce_s(op.reduce_backward_bytes)});
  const auto added = price(profile, accumulation(model, layer, tp));
  return layer_time(operators, added ? added->forward.seconds : 0.0);
}

std::vector<price::OperatorPrice> operator_prices(const Model& model,
                                                  const hardware::Profile& profile, Layer layer,
                                                  int microbatch, int tp) {
  std::vector<OperatorShape> shapes = operators_of(model, layer, microbatch, tp);
  shapes.push_back(accumulation(model, layer, tp));
  std::vector<price::OperatorPrice> prices;
  for (const OperatorShape& op : shapes)
    if (auto priced = price(profile, op)) {
      priced->part = layer == Layer::block       ? "layer"
                     : layer == Layer::embedding ? "embedding"
                                                 : "head";
      prices.push_back(std::move(*priced));
    }
  return prices;
}

}  // namespace brume::mist
