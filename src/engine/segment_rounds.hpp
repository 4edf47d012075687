/// @file Rounds: tokens in parts, if their copies exceed the room for experts.
#pragma once

#include <algorithm>
#include <utility>

#include "device/device.hpp"
#include "segment_tasks.hpp"

namespace brume::engine {

/// Cuts the tokens so that each round's copies fit the room for held experts.
template <class Storage>
auto SegmentTasks<Storage>::rounds(const Pass& p) const -> std::vector<Round> {
  const kernels::Routes all = routes(p);
  const std::vector<std::int32_t> experts = read_choices(p);
  std::vector<Round> found{{0, 0}};
  int held = 0;  // copies of the last round
  for (auto token = experts.begin(); token != experts.end(); token += experts_per_token_) {
    const int own = int(std::count_if(token, token + experts_per_token_, [&](std::int32_t expert) {
      return all.place(expert) < num_held_;
    }));
    if (held + own > p.list.room) {
      found.push_back({found.back().first + found.back().count, 0});
      held = 0;
    }
    ++found.back().count;
    held += own;
  }
  return found;
}

/// Calls `each` with the pass of every round, for whose tokens alone routes and gates are made;
/// afterwards routes and gates are made for all tokens again.
template <class Storage>
template <class Each>
void SegmentTasks<Storage>::for_rounds(const Pass& p, Each each) const {
  const OperatorKind orders =
      p.list.arrival > 0 ? OperatorKind::order_copies : OperatorKind::choose_experts;
  const auto choice = std::ranges::find(p.list.segment.operators, orders, &Operator::kind);
  const auto choose = [&](Pass pass) {
    pass.backward = false, pass.knows_choices = true;
    call(pass, *choice).forward();
  };
  for (const Round& round : rounds(p)) {
    Pass q = p;
    q.rows = round.count, q.first_row = round.first, q.begins.clear();
    q.adds = round.first > 0;
    choose(q);
    each(q);
  }
  choose(p);
}

/// Makes the tensors again that the operators up to index `last` write, for a round's tokens: all
/// but routes and tensors that are kept of all tokens. What ranks sent each other is there.
template <class Storage>
void SegmentTasks<Storage>::make_of_round(const Pass& q, int last) const {
  for (int i = q.list.arrival; i <= last; ++i) {
    const Operator& op = q.list.op(i);
    const bool routes = model::makes_logits(op.kind) || op.kind == OperatorKind::choose_experts;
    if (!routes && !model::is_epilogue(op.kind) && !model::is_exchange(op.kind) &&
        !lasts(q, op.written))
      run_forward(q, op, call(q, op), model::is_norm(op.kind));
  }
}

/// @param choice  index of the choice of experts, behind which nothing is made so far
/// @param end     of the run
/// @param sum     added to the output, of all tokens
template <class Storage>
void SegmentTasks<Storage>::forward_in_rounds(const Pass& p, int choice, int end,
                                              const ConstMatrix& sum) const {
  const bool wanted = wants_output(p);
  for_rounds(p, [&](const Pass& q) {
    loads_.rounds += q.first_row > 0 && p.o.task.operation == Operation::forward;
    make_of_round(q, choice);
    ConstMatrix before = sum.data() != nullptr ? q.of_round(sum) : ConstMatrix();
    for (int i = choice + 1; i < end; ++i) {
      const Operator& op = p.list.op(i);
      if (model::is_epilogue(op.kind) || (!wanted && p.list.for_output[i])) continue;
      Call c = call(q, op);
      if (op.written == p.list.segment.terms) c.residual = std::exchange(before, c.written);
      run_forward(q, op, c, false);
    }
  });
}

/// The first part of a split backward makes gradients of products' weights too if it takes rounds,
/// so maybe before the second part of the first microbatch. Therefore all parts add to zeros.
template <class Storage>
void SegmentTasks<Storage>::begin_experts_gradients(Pass& p) const {
  p.adds = p.o.task.operation == Operation::backward_weights;
  if (p.o.task.operation != Operation::backward_input || p.o.write() != Write::replace) return;
  for (const Operator& op : p.list.segment.operators)
    for (const Module module : op.modules)
      if (model::is_product(op.kind))
        for (const Part one : {op.part, Part::bias})
          if (const kernels::Matrix grads = weight_grads(p, {module, one}); grads.data())
            kernels::fill(0.0f, part(grads.data(), std::int64_t(grads.size())));
}

/// A round is a backward of its tokens alone. What the forward kept of the rows of experts is that
/// of its last round, so all of it is made again. The first part of a split backward makes the
/// gradients of weights too.
template <class Storage>
void SegmentTasks<Storage>::backward_in_rounds(const Pass& p, const model::Run& run,
                                               const StepScalars& step) const {
  if (!makes_input(p.o)) return;
  const std::vector<Operator>& operators = p.list.segment.operators;
  const auto products = std::ranges::find(operators, OperatorKind::experts, &Operator::kind);
  const auto behind = std::find_if(
      products, operators.end(), [&](const Operator& op) { return op.read == products->written; });
  for_rounds(p, [&](const Pass& q) {
    Backward round{
        .step = step, .sum = {}, .made = std::vector<char>(p.list.segment.operators.size())};
    if (!p.list.cuts) round.sum = q.of_round(stream(p.o, Role::gradient));
    make_of_round(q, int(behind - operators.begin()) - 1);
    for (auto op = behind; op != operators.end(); ++op)
      if (op->part == Part::lora_a && q.list.tensor(op->written).held)
        for (const Operator* const made : {&*behind, &*op})
          run_forward(q, *made, call(q, *made), false);
    for (int i = run.first; i < run.end; ++i) {
      const model::BackwardCall& called = p.list.segment.backward[i];
      const TensorId written = p.list.op(called.op).written;
      if (!called.again || (!lasts(q, written) && round.made[called.op] == 0))
        run_backward(q, called, round);
    }
  });
}

}  // namespace brume::engine
