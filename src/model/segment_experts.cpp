/// @file Operators of MLPs and of experts.
#include "segment_list.hpp"

namespace brume::model {
namespace {

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

}  // namespace

OperatorKind SegmentList::activation_kind() const {
  return activations[std::size_t(m_.mlp())].kind;
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
  const Expr rows = segment_.tensor(wide).rows;
  streaming(prefix + name(kind), kind, wide, activated, {rows, inner.width}, rows * inner.in_width)
      .gates = inner.gates;
  return activated;
}

/// If rows travel, each rank computes its own tokens while they are on their way.
///
/// @return what the last product of the expert reads that every token passes
TensorId SegmentList::shared_expert(TensorId normed) {
  own_alone_ = dispatches_;
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
    const Expr rows = segment_.tensor(logits).rows;
    streaming("sigmoid", OperatorKind::sigmoid, logits, *inner.gates, {rows}, rows);
  }
  const TensorId activated = mlp(normed, inner);
  own_alone_ = false;
  return activated;
}

/// @param of_own  the input and the logits are of this rank's tokens
/// @return logits
TensorId SegmentList::router(TensorId normed, const Expr& experts, bool of_own) {
  const TensorId logits = in_fp32("logits", experts);
  if (of_own) cut(logits);
  product("router", OperatorKind::router, normed, logits, {{Module::router}, experts, s_.hidden});
  if (m_.linear_bias) epilogue("router bias", logits, logits, {Module::router});
  return logits;
}

/// Brings the numbers of copies together that the ranks of a sequence have for each expert. The
/// choice, or the order of all choices, writes this rank's.
void SegmentList::count_loads(const Expr& experts) {
  if (m_.balance_loss == 0.0 || sharing_ == Sharing::none) return;
  const TensorId own = tensor("loads", 1.0, experts, statistic_bytes),
                 all = tensor("loads.all", s_.cp, experts, statistic_bytes);
  segment_.tensor(all).stays = true;
  exchange("gather loads", OperatorKind::all_gather, own, all, Axis::cp);
  for (Operator& op : segment_.operators)
    if (op.kind == OperatorKind::choose_experts) op.statistics.push_back(all);
}

/// Experts of all tokens that this rank has, by the logits of these.
void SegmentList::choose(TensorId normed, const Expr& experts, int copies) {
  const TensorId logits = router(normed, experts, false);
  gates_ = in_fp32("gates", 1.0, copies);
  routes_ = statistic("routes", 2.0 * double(copies) * s_.tokens + experts + 1.0);
  streaming("choice", OperatorKind::choose_experts, logits, gates_,
            {s_.tokens, experts, double(copies)}, s_.tokens * experts)
      .statistics = {routes_};
  count_loads(experts);
}

/// Each rank chooses for its own tokens. All know all choices, and so the rows that any two send
/// each other.
///
/// @return rows of tokens that have an expert on this rank, in the order of ranks
TensorId SegmentList::arrived(TensorId normed, const Expr& experts, int copies) {
  const Expr ranks = sum_ranks(segment_.kind), own = s_.tokens / ranks;
  const Expr copied = double(copies) * s_.tokens;
  const TensorId logits = router(normed, experts, true);
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
  count_loads(experts);
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
  if (m_.shared_expert_ffn_size > 0) shared_ = shared_expert(normed);
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
  if (shared_) add_product("shared out", *shared_, written, Module::shared_out);
  const Expr expected = s_.tokens / sum_ranks(segment_.kind) * ranks_of_token(m_);
  streaming("sum", OperatorKind::combine, back, written, {expected, s_.hidden},
            expected * s_.hidden)
      .routes = sends_;
}

}  // namespace brume::model
