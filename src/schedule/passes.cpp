/// @file What a slot computes: the update of a block, its forward, its backward.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "compiler.hpp"

namespace brume::schedule {

void Compiler::update(const Slot& slot) {
  const BlockBuffers& b = buffers_.at(slot.block);
  add_task(Channel::compute, Operation::optimizer_step, slot);
  range(Role::weights, b.weights, b.shard_first * weight_bytes_, b.shard_elements * weight_bytes_,
        true, true);
  range(Role::grads, b.grads, b.shard_first * model::grad_bytes,
        b.shard_elements * model::grad_bytes, true, false);
  if (b.moments >= 0) operand(Role::moments, b.moments, true, true);
  if (b.host_moments >= 0) operand(Role::staged, staged_.at(slot.block), true, true);
  operand(Role::totals, totals_, true, false);
  if (stage_.zero_level >= 1 && stage_.dp > 1) {
    add_task(Channel::collective_dp, Operation::all_gather, slot).group = Group::dp;
    operand(Role::destination, b.weights, true, true);
  }
  if (slot.block == 0 && tied_across_stages()) send_tied_weights(slot);
}

void Compiler::forward(const Slot& slot) {
  const int m = slot.microbatch;
  Activations& kept = activations(m, slot.block);
  kept.drained = !offloads(slot.block);
  const std::vector<SegmentKind> kinds = segment_kinds(slot.block);
  if (kinds.front() == SegmentKind::embedding) {
    kept.input[kinds.front()] = inputs_;
  } else {
    kept.input[kinds.front()] = stream_.at(m);
    stream_.erase(m);
  }
  forward_segments(slot, Operation::forward);
  if (recomputes(slot.block)) {
    kept.input = {{kinds.front(), kept.input.at(kinds.front())}};
    kept.saved.clear();
  }
  send_stream(slot);
}

/// Runs the segments of a block, each from the output of the one before it. The last one's output
/// goes to the next block; where it is only recomputed nobody needs it.
void Compiler::forward_segments(const Slot& slot, Operation operation) {
  const int m = slot.microbatch;
  Activations& kept = activations(m, slot.block);
  const std::vector<SegmentKind> kinds = segment_kinds(slot.block);
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const bool last = i + 1 == kinds.size();
    int output = -1;
    if (!is_head(slot.block) && !(last && operation == Operation::recompute))
      output = add_buffer(fmt::format("{}.{}#{}", blocks_[std::size_t(slot.block)].name,
                                      last ? "output" : "middle", m),
                          Tier::device, Content::stream, stream_bytes_, slot.block);
    if (!last)
      kept.input[kinds[i + 1]] = output;
    else if (output >= 0)
      stream_[m] = output;
    run_forward(slot, kinds[i], operation, kept.input.at(kinds[i]), output, kept.saved[kinds[i]]);
  }
}

void Compiler::run_forward(const Slot& slot, SegmentKind kind, Operation operation, int input,
                           int output, std::vector<int>& saved) {
  const SegmentBytes& sizes = segments_.at(kind);
  const std::int64_t batch_first = slot.microbatch * batch_bytes_;
  saved.clear();
  for (const auto& [name, bytes] : sizes.saved)
    saved.push_back(add_buffer(
        fmt::format("{}.{}#{}", blocks_[std::size_t(slot.block)].name, name, slot.microbatch),
        Tier::device, Content::saved, bytes, slot.block));
  const int workspace = sizes.forward_workspace == 0
                            ? -1
                            : add_buffer("workspace", Tier::device, Content::workspace,
                                         sizes.forward_workspace, slot.block);

  add_task(Channel::compute, operation, slot).segment = kind;
  if (kind == SegmentKind::embedding)
    range(Role::input, input, batch_first, batch_bytes_, true, false);
  else
    operand(Role::input, input, true, false);
  operand(Role::weights, buffers_.at(slot.block).weights, true, false);
  for (std::size_t i = 0; i < saved.size(); ++i)
    operand(Role::saved, saved[i], false, true, int(i));
  if (workspace >= 0) operand(Role::workspace, workspace, false, true);
  if (output >= 0) operand(Role::output, output, false, true);
  if (kind == SegmentKind::head) {
    if (model_.tied_head) table_operand(Role::weights, true, false);
    range(Role::targets, targets_, batch_first, batch_bytes_, true, false);
    program_.tasks.back().replaces = slot.microbatch == 0;
    operand(Role::loss, loss_, slot.microbatch > 0, true);
  }
  if (output >= 0 && kind != SegmentKind::embedding) tp_all_reduce(slot, output);
}

void Compiler::table_operand(Role role, bool reads, bool writes) {
  const bool weights = role == Role::weights;
  if (tied_across_stages())
    return operand(role, weights ? tied_weights_ : tied_grads_, reads, writes, 1);
  const BlockBuffers& embedding = buffers_.at(0);
  const std::int64_t element_bytes = weights ? weight_bytes_ : model::grad_bytes;
  range(role, weights ? embedding.weights : embedding.grads, table_first_ * element_bytes,
        table_elements_ * element_bytes, reads, writes, 1);
}

void Compiler::backward(const Slot& slot) {
  const int m = slot.microbatch;
  Activations& kept = activations(m, slot.block);
  clear_gradients(slot);
  if (is_head(slot.block)) {
    gradient_[m] = add_buffer(fmt::format("gradient#{}", m), Tier::device, Content::stream,
                              stream_bytes_, slot.block);
  }
  if (recomputes(slot.block)) forward_segments(slot, Operation::recompute);
  std::vector<SegmentKind> kinds = segment_kinds(slot.block);
  std::ranges::reverse(kinds);
  for (SegmentKind kind : kinds) run_backward(slot, kind, kept.input.at(kind), kept.saved.at(kind));
  send_stream(slot);
  if (m == plan_.microbatches - 1) reduce_gradients(slot);
  activations_.erase({m, slot.block});
}

/// The token and position tables get their gradients by adding rows, so they start from zero.
void Compiler::clear_gradients(const Slot& slot) {
  if (slot.microbatch != 0) return;
  const bool same_stage = model_.tied_head && !tied_across_stages();
  if (is_head(slot.block) && tied_across_stages()) {
    add_task(Channel::compute, Operation::clear, slot);
    operand(Role::grads, tied_grads_, false, true);
  }
  const bool first_touch = same_stage ? is_head(slot.block) : slot.block == 0;
  if (!first_touch) return;
  add_task(Channel::compute, Operation::clear, {slot.kind, slot.microbatch, 0});
  operand(Role::grads, buffers_.at(0).grads, false, true);
}

void Compiler::run_backward(const Slot& slot, SegmentKind kind, int input,
                            const std::vector<int>& saved) {
  const SegmentBytes& sizes = segments_.at(kind);
  const int workspace = sizes.backward_workspace == 0
                            ? -1
                            : add_buffer("workspace", Tier::device, Content::workspace,
                                         sizes.backward_workspace, slot.block);
  const int gradient = gradient_.at(slot.microbatch);
  const BlockBuffers& b = buffers_.at(slot.block);
  const bool first = slot.microbatch == 0;

  Task& task = add_task(Channel::compute, Operation::backward, slot);
  task.segment = kind;
  task.replaces = first;
  if (kind == SegmentKind::embedding)
    range(Role::input, input, slot.microbatch * batch_bytes_, batch_bytes_, true, false);
  else
    operand(Role::input, input, true, false);
  operand(Role::weights, b.weights, true, false);
  operand(Role::grads, b.grads, !first || kind == SegmentKind::embedding, true);
  for (std::size_t i = 0; i < saved.size(); ++i)
    operand(Role::saved, saved[i], true, false, int(i));
  if (workspace >= 0) operand(Role::workspace, workspace, false, true);
  operand(Role::gradient, gradient, kind != SegmentKind::head, kind != SegmentKind::embedding);
  if (kind == SegmentKind::head && model_.tied_head) {
    table_operand(Role::weights, true, false);
    table_operand(Role::grads, true, true);
  }
  if (is_layer(slot.block)) tp_all_reduce(slot, gradient);
}

/// After the last microbatch a block's gradients are complete on this rank: sum them over the
/// others.
}  // namespace brume::schedule
