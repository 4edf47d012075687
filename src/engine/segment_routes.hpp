/// @file Routes of tokens to experts: their places, their calls and their loads.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>

#include "base/text.hpp"
#include "device/device.hpp"
#include "segment_tasks.hpp"

namespace brume::engine {

/// The routes that the operator of the choice writes.
template <class Storage>
kernels::Routes SegmentTasks<Storage>::routes(const Pass& p) const {
  auto* const experts = reinterpret_cast<std::int32_t*>(statistic(p, p.list.routes).data());
  const std::int64_t copies = std::int64_t{p.all_rows} * experts_per_token_,
                     before = std::int64_t{p.first_row} * experts_per_token_;
  // Gates in the order of tokens follow, if rows travel, and the places of these behind all else.
  const bool travel = p.list.arrival > 0;
  std::int32_t* const begins = experts + (travel ? 3 : 2) * copies;
  return {
      .experts = experts + before,
      .rows = experts + copies + before,
      .begins = begins,
      .num_experts = num_experts_,
      .chosen = experts_per_token_,
      .first_held = first_held_,
      .num_held = num_held_,
      .places = travel ? begins + num_experts_ + 1 + p.first_row : nullptr,
      .placed = p.rows,
      .padding = p.list.pads.empty()
                     ? nullptr
                     : reinterpret_cast<const std::uint8_t*>(p.list.padding.data()) + p.first_row};
}

/// The rows that this rank and others send each other.
template <class Storage>
kernels::TokenRows SegmentTasks<Storage>::token_rows(const Pass& p) const {
  auto* const sent = reinterpret_cast<std::int32_t*>(statistic(p, p.list.sends).data());
  const int ranks = p.list.ranks;
  const std::int64_t copies = std::int64_t{p.own_rows()} * experts_per_token_;
  const std::int64_t first = -std::int64_t{p.first_row};
  return {.sent = sent,
          .sent_begins = sent + copies,
          .places = const_cast<std::int32_t*>(routes(p).places) + first,
          .place_begins = sent + copies + ranks + 1,
          .ranks = ranks,
          .rank = p.list.rank,
          .own_tokens = p.own_rows()};
}

/// Rows that this rank sends as the copies of its tokens, for ranks in place of experts.
template <class Storage>
kernels::Routes SegmentTasks<Storage>::sent_rows(const Pass& p) const {
  const kernels::TokenRows found = token_rows(p);
  kernels::Routes made{.rows = found.sent,
                       .begins = found.sent_begins,
                       .num_experts = found.ranks,
                       .chosen = experts_per_token_,
                       .num_held = found.ranks};
  if (p.sent_begins.empty()) p.sent_begins = kernels::read_begins(made);
  made.host_begins = p.sent_begins.data();
  return made;
}

/// The routes after the choice. A task reads their numbers on the host once.
template <class Storage>
kernels::Routes SegmentTasks<Storage>::made_routes(const Pass& p) const {
  kernels::Routes made = routes(p);
  if (p.begins.empty()) p.begins = kernels::read_begins(made);
  made.host_begins = p.begins.data();
  return made;
}

/// Adds what operators of experts alone have.
template <class Storage>
void SegmentTasks<Storage>::route(const Pass& p, const Operator& op, Call& c) const {
  const std::int64_t logits_before = std::int64_t{p.first_row} * num_experts_;
  const auto gates_before = [&](TensorId id) {
    return std::int64_t{p.first_row} * p.list.tensor(id).copies;
  };
  const auto logits = [&](TensorId id) {
    return rows(statistic(p, id).data() + logits_before, num_rows(p, p.list.tensor(id)),
                num_experts_);
  };
  const auto d_logits = [&](TensorId id) {
    return rows(wide_gradient(p, id) + logits_before, num_rows(p, p.list.tensor(id)), num_experts_);
  };
  const auto gates = [&](TensorId id, std::int64_t count) {
    return part(statistic(p, id).data() + gates_before(id), count);
  };
  const auto d_gates = [&](TensorId id, std::int64_t count) {
    return part(wide_gradient(p, id) + gates_before(id), count);
  };
  const bool travel = p.list.arrival > 0;
  if (op.routes) c.routes = travel && *op.routes == p.list.sends ? sent_rows(p) : made_routes(p);
  if (op.kind == OperatorKind::order_copies) return order(p, op, c);
  if (op.kind == OperatorKind::router) {
    c.logits = logits(op.written);
    if (p.backward) c.d_logits = d_logits(op.written);
  }
  if (op.kind == OperatorKind::choose_experts && travel) return choose_own(p, op, c);
  if (op.kind == OperatorKind::choose_experts) {
    const Storage* const weights = p.o.template optional<Storage>(Role::weights);
    c.routes = p.backward ? made_routes(p) : routes(p);
    c.logits = logits(op.read);
    c.gates = gates(op.written, std::int64_t{p.rows} * experts_per_token_);
    c.router = router_;
    const model::ParameterId correction{Module::router, Part::correction};
    if (!p.backward) c.router.correction = p.block.in_fp32(weights, correction).data();
    if (!p.backward) return;
    c.d_logits = d_logits(op.read);
    c.d_gates = d_gates(op.written, c.routes.held_rows());
  }
  const std::optional<TensorId> of_rows =
      op.kind == OperatorKind::sigmoid ? std::optional(op.written) : op.gates;
  if (!of_rows) return;
  const std::int64_t count =
      op.routes ? c.routes.held_rows() : num_rows(p, p.list.tensor(*of_rows));
  c.gates = gates(*of_rows, count);
  if (!p.backward) return;
  c.d_gates = d_gates(*of_rows, count);
  // A backward begins with the last reader.
  const std::vector<Operator>& operators = p.list.segment.operators;
  const bool last = std::none_of(&op + 1, operators.data() + operators.size(),
                                 [&](const Operator& other) { return other.gates == op.gates; });
  c.write_d_gates = last ? Write::replace : Write::accumulate;
}

/// The choice of this rank's tokens: numbers of experts, then gates, both in the order of tokens.
template <class Storage>
void SegmentTasks<Storage>::choose_own(const Pass& p, const Operator& op, Call& c) const {
  const int tokens = p.own_rows();
  const std::int64_t copies = std::int64_t{tokens} * experts_per_token_,
                     before = p.list.rank * copies;
  c.logits = rows(statistic(p, op.read).data(), tokens, num_experts_);
  c.routes = routes(p);
  c.routes.rows = nullptr;
  c.router = router_;
  if (!p.backward) {
    float* const numbers = wide(p, p.list.choices) + 2 * before;
    c.routes.experts = reinterpret_cast<std::int32_t*>(numbers);
    c.gates = part(numbers + copies, copies);
    const Storage* const weights = p.o.template optional<Storage>(Role::weights);
    c.router.correction =
        p.block.in_fp32(weights, model::ParameterId{Module::router, Part::correction}).data();
    return;
  }
  c.routes.experts += before;
  if (c.routes.padding != nullptr) c.routes.padding += p.list.rank * tokens;
  c.d_logits = rows(wide_gradient(p, op.read), tokens, num_experts_);
  c.d_gates = part(wide_gradient(p, p.list.choices) + 2 * before + copies, copies);
}

/// The rows of copies of all ranks' tokens, or of a round's.
template <class Storage>
void SegmentTasks<Storage>::order(const Pass& p, const Operator& op, Call& c) const {
  const std::int64_t all = std::int64_t{p.all_rows} * experts_per_token_,
                     before = std::int64_t{p.first_row} * experts_per_token_,
                     copies = std::int64_t{p.rows} * experts_per_token_;
  c.token_rows = token_rows(p);
  c.first_token = p.first_row, c.num_tokens = p.rows;
  if (p.backward) {
    c.routes = made_routes(p);
    c.d_gates = part(wide_gradient(p, op.written) + before, c.routes.held_rows());
    c.d_choices = part(wide_gradient(p, op.read), 2 * all);
    return;
  }
  c.routes = routes(p);
  c.gates = part(statistic(p, op.written).data() + before, copies);
  c.of_tokens = part(statistic(p, p.list.routes).data() + 2 * all + before, copies);
  if (!p.knows_choices) c.choices = part(wide(p, op.read), 2 * all);
}

/// The experts of a pass's tokens.
template <class Storage>
std::vector<std::int32_t> SegmentTasks<Storage>::read_choices(const Pass& p) const {
  std::vector<std::int32_t> experts(std::size_t(p.rows) * std::size_t(experts_per_token_));
  device::copy(experts.data(), routes(p).experts,
               std::int64_t(experts.size() * sizeof(experts[0])));
  device::finish();
  return experts;
}

template <class Storage>
void SegmentTasks<Storage>::count_loads(const Pass& p) const {
  if (p.o.task.operation != Operation::forward) return;
  ++loads_.forwards, ++loads_.rounds;
  if (p.list.rank != 0) return;
  const std::int64_t first = std::int64_t{p.block.block.layer - first_dense_layers_} * num_experts_;
  if (!p.list.pads.empty()) {
    const std::vector<std::int32_t> experts = read_choices(p);
    for (std::size_t i = 0; i < experts.size(); ++i)
      if (p.list.pads[i / std::size_t(experts_per_token_)] == 0)
        ++loads_.copies[std::size_t(first + experts[i])];
    return;
  }
  const std::int32_t* const begins = made_routes(p).host_begins;
  for (int e = 0; e < num_experts_; ++e)  // rank 0 holds the first experts, so rows begin with them
    loads_.copies[std::size_t(first + e)] += begins[e + 1] - begins[e];
}

/// The part of a sequence that this rank has, among the tokens of all ranks that divide experts.
template <class Storage>
auto SegmentTasks<Storage>::own_part(const Pass& p) const -> Round {
  const int length = p.all_rows / (p.list.ranks / tp_);
  return {p.list.rank / tp_ * length, length};
}

/// The copies of this rank's part of a sequence, for the ranks that balance others.
template <class Storage>
void SegmentTasks<Storage>::count_own_copies(const Pass& p) const {
  if (!shares_loads(p)) return;
  float* const counts = statistic(p, p.list.loads).data() + cp_rank_ * num_experts_;
  const Round own = own_part(p);
  kernels::count_copies(routes(p), own.first, own.count, part(counts, num_experts_));
}

template <class Storage>
ExpertLoads SegmentTasks<Storage>::take_loads() const {
  return std::exchange(loads_, {.copies = std::vector<std::int64_t>(loads_.copies.size())});
}

/// One of the ranks that divide experts adds these losses; the others have parts of the same
/// gradients. If each has its own tokens, it adds theirs. If ranks share a sequence, one of each
/// part's ranks balances the part.
template <class Storage>
kernels::RouterLoss SegmentTasks<Storage>::router_loss(const Pass& p,
                                                       const StepScalars& step) const {
  const bool own = p.list.arrival > 0, adds = own || p.list.rank == 0;
  if (num_experts_ == 0) return {};
  const double of_token = step.sequence_scale / learned_len_;
  const double share = double(num_experts_) / (double(learned_len_) * experts_per_token_);
  const auto balance = float(balance_loss_ * share * of_token), z = float(z_loss_ * of_token);
  if (shares_loads(p)) {
    const Round all = own_part(p);
    return {.balance = own || p.list.rank % tp_ == 0 ? balance : 0.0f,
            .z = adds ? z : 0.0f,
            .counts = statistic(p, p.list.loads).data(),
            .parts = cp_,
            .first = own ? 0 : all.first - p.first_row,
            .count = own ? p.own_rows() : all.count};
  }
  if (!adds) return {};
  const int first = own ? p.list.rank * p.own_rows() : p.first_row;
  const int length = seq_len_ / cp_, end = first + (own ? p.own_rows() : p.rows);
  return {.balance = balance,
          .z = z,
          .seq_len = length,
          .before = first % length,
          .after = int(ceil_div(end, length)) * length - end};
}

}  // namespace brume::engine
