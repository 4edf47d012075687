/// @file Forward, loss and backward of a segment.
#include <algorithm>

#include "kernels/cross_entropy.hpp"
#include "segment_calls.hpp"
#include "segment_lists.hpp"
#include "segment_memory.hpp"
#include "segment_rounds.hpp"
#include "segment_routes.hpp"
#include "segment_weights.hpp"

namespace brume::engine {
namespace {

/// An exchange of one rank.
template <class Storage>
void copy(kernels::ConstMatrixOf<Storage> from, kernels::MatrixOf<Storage> to) {
  kernels::copy<Storage>({from.data(), from.size()}, {to.data(), to.size()});
}

}  // namespace

/// A recompute whose output nobody reads makes only the tensors that a backward needs.
template <class Storage>
void SegmentTasks<Storage>::forward(const Operands& o, const StepScalars& step) const {
  const Pass p = pass(o, false);
  const bool wanted = wants_output(p);
  const SegmentKind kind = o.task.segment;
  const TensorId terms = p.list.segment.terms;
  const bool adds =
      kind != SegmentKind::embedding && kind != SegmentKind::head && terms == TensorId::output;
  const model::Run& run = p.list.forward_runs[o.task.run];
  const bool begun =
      wanted && std::any_of(p.list.segment.operators.begin(),
                            p.list.segment.operators.begin() + run.first, [&](const Operator& op) {
                              return op.written == terms && !model::is_epilogue(op.kind);
                            });
  ConstMatrix sum =
      adds ? ConstMatrix(stream(o, begun ? Role::output : Role::input)) : ConstMatrix();
  if (p.list.rounds > 0 && run.first == p.list.rounds && needs_rounds(p))
    return forward_in_rounds(p, run.first - 1, run.end, wanted ? sum : ConstMatrix());
  for (int i = run.first; i < run.end; ++i) {
    const Operator& op = p.list.op(i);
    if (op.kind == OperatorKind::all_to_all)
      copy<Storage>(tensor(p, op.read), tensor(p, op.written));
    if (model::is_exchange(op.kind)) continue;  // alone
    if (model::is_epilogue(op.kind) || (!wanted && p.list.for_output[i])) continue;
    if (p.gelu_in_product && i == p.list.gelu) continue;
    Call c = call(p, op);
    if (op.kind == OperatorKind::cross_entropy) {
      c.tokens = tokens(o, Role::targets);
      c.cap = logits_cap_;
      if (tp_ == 1) {
        for_losses(o, step, [&](const LossPart& part) {
          Call one = c;
          one.written = kernels::rows<Storage>(c.written, part.first, part.count);
          one.tokens = {c.tokens.data() + part.first, std::size_t(part.count)};
          one.scale = part.scale;
          one.write = part.write;
          one.loss = part.loss;
          one.misses = part.loss + 1;
          one.forward();
        });
      } else {
        const std::int64_t mine = std::int64_t{kernels::num_statistics} * p.rows;
        float* const statistics = statistic(p, op.statistics.front()).data() + tp_rank_ * mine;
        kernels::cross_entropy_part<Storage>(c.written, c.tokens, vocabulary_,
                                             rows(statistics, p.rows, kernels::num_statistics),
                                             c.cap);
      }
      continue;
    }
    if (p.gelu_in_product && i == p.list.product_before) {
      const Matrix activated = tensor(p, p.list.op(p.list.gelu).written);
      for_modules(p, op, c, [&](const Call& product) { product.forward_with_gelu(activated); });
      continue;
    }
    if (op.written == terms && wanted) c.residual = sum;
    run_forward(p, op, c, false);
    const OperatorKind orders =
        p.list.arrival > 0 ? OperatorKind::order_copies : OperatorKind::choose_experts;
    if (op.kind == orders) {
      count_loads(p), count_own_copies(p);
      if (p.list.rounds == 0 && needs_rounds(p))
        return forward_in_rounds(p, i, run.end, wanted ? sum : ConstMatrix());
    }
    if (op.written == terms) sum = c.written;
  }
}

template <class Storage>
void SegmentTasks<Storage>::loss(const Operands& o, const StepScalars& step) const {
  const List& list = lists_.at(SegmentKind::head);
  const Operator& op = list.segment.operators.back();
  const kernels::ConstTokens targets = tokens(o, Role::targets);
  const int count = targets.extent_int(0);
  const auto saved = [&](TensorId id) { return list.tensors[std::size_t(id)].saved; };
  const Matrix logits =
      rows(o.data<Storage>(Role::saved, saved(op.written)), count, rows_of_table_);
  constexpr int each = kernels::num_statistics;
  const kernels::Matrix statistics =
      rows(o.data(Role::saved, saved(op.statistics.front())), tp_, each * count);
  for_losses(o, step, [&](const LossPart& part) {
    kernels::cross_entropy_combine<Storage>(
        kernels::rows<Storage>(logits, part.first, part.count),
        {targets.data() + part.first, std::size_t(part.count)}, vocabulary_,
        kernels::columns(statistics, each * part.first, each * part.count), tp_rank_, part.scale,
        part.write, part.loss, logits_cap_, part.loss + 1);
  });
}

/// One loss of all rows, or of pairs one for each sequence, which other tasks may have begun.
template <class Storage>
template <class Use>
void SegmentTasks<Storage>::for_losses(const Operands& o, const StepScalars& step, Use use) const {
  double* const loss = o.data<double>(Role::loss);
  const int count = int(o.elements(Role::targets)), own_tokens = seq_len_ / cp_;
  if (!pairs_) return use(LossPart{0, count, step.loss_scale, o.write(), loss});
  const auto first = int(o.task.at(Role::targets).first_byte / model::token_bytes);
  for (int row = 0, end = 0; row < count; row = end) {
    const int sequence = (first + row) / own_tokens;
    end = std::min(count, (sequence + 1) * own_tokens - first);
    const bool begins = (first + row) % own_tokens == 0;
    use(LossPart{row, end - row, step.factors.empty() ? 1.0f : step.factors[sequence],
                 begins ? Write::replace : Write::accumulate, loss + 2 * (1 + sequence)});
  }
}

/// In two parts the first one leaves gradients of linear layers to the second, and what these need
/// in a buffer of its own: each kernel reads the same numbers as in one. The gradient of the stream
/// goes past the branches too, but for the head.
template <class Storage>
void SegmentTasks<Storage>::backward(const Operands& o, const StepScalars& step) const {
  Pass p = pass(o, true);
  const std::vector<model::BackwardCall>& calls = p.list.segment.backward;
  const model::Run run =
      makes_input(o) ? p.list.backward_runs[o.task.run] : model::Run{0, int(calls.size())};
  if (!makes_input(o) || o.task.run == p.list.experts_run) {
    if (needs_rounds(p)) return backward_in_rounds(p, run, step);
    if (p.list.may_take_rounds) begin_experts_gradients(p);
  }
  const bool begun =
      std::any_of(calls.begin(), calls.begin() + run.first, [&](const model::BackwardCall& call) {
        return !call.again && p.list.op(call.op).read == TensorId::input;
      });
  Backward shared{
      .step = step, .sum = {}, .made = std::vector<char>(p.list.segment.operators.size())};
  const bool cuts = p.list.cuts && makes_input(o) && o.task.find(Role::output);
  if (begun || cuts)
    shared.sum = gradient(p, TensorId::input);
  else if (!p.list.cuts && o.task.segment != SegmentKind::head && makes_input(o))
    shared.sum = stream(o, Role::gradient);
  for (int i = run.first; i < run.end; ++i) {
    const model::BackwardCall& called = calls[i];
    if (!(called.for_weights ? makes_weights(o) : makes_input(o))) continue;
    const Operator& op = p.list.op(called.op);
    if (called.again && (keeps(p, op.written) || shared.made[called.op] != 0)) continue;
    if (called.again && called.for_weights && !trains_reader(p, op.written)) continue;
    run_backward(p, called, shared);
  }
}

template <class Storage>
void SegmentTasks<Storage>::run_backward(const Pass& p, const model::BackwardCall& called,
                                         Backward& shared) const {
  const Operator& op = p.list.op(called.op);
  if (op.kind == OperatorKind::all_to_all)
    copy<Storage>(gradient(p, op.written), gradient(p, op.read));
  if (model::is_exchange(op.kind)) return;  // alone
  Call c = call(p, op);
  if (called.again) {
    run_forward(p, op, c, true);
    shared.made[called.op] = 1;
    return;
  }
  c.d_written = gradient(p, op.written);
  if (called.for_weights)
    return for_modules(
        p, op, c, [](const Call& product) { product.backward_weights(); }, false);
  if (called.op == p.list.product_behind) return;  // goes with GELU
  if (op.kind != OperatorKind::embedding) c.d_read = gradient(p, op.second.value_or(op.read));
  cut(c.d_read, columns_of_second(op));
  if (op.second) c.d_keys = gradient(p, op.read);
  if (op.kind == OperatorKind::cut_keys) cut(c.d_read, columns_[std::size_t(Module::kv)]);
  if (called.op == p.list.gelu && p.list.product_behind >= 0) {
    const Operator& behind = p.list.op(p.list.product_behind);
    Call product = call(p, behind);
    product.d_written = gradient(p, behind.written);
    return for_modules(p, behind, product,
                       [&](const Call& one) { one.backward_input_through_gelu(c.read, c.d_read); });
  }
  if (op.kind == OperatorKind::rope) cut(c.d_read, turned_columns(op));
  if (norms_columns(op, c.read) && c.d_read.data() != c.d_written.data())
    copy<Storage>(c.d_written, c.d_read);
  if (op.read == TensorId::input) c.d_residual = shared.sum;
  if (op.kind == OperatorKind::choose_experts) c.router_loss = router_loss(p, shared.step);
  for_modules(p, op, c, [](const Call& one) { one.backward_input(); });
  if (op.part == Part::lora_b) scale_low(op, c.d_read);
  if (op.read == TensorId::input) shared.sum = c.d_read;
}

template class SegmentTasks<float>;
template class SegmentTasks<kernels::bfloat16>;
template class SegmentTasks<kernels::float16>;

}  // namespace brume::engine
