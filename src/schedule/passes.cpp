/// @file What a slot computes: a block's forward, its backward.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "compiler.hpp"

namespace brume::schedule {

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
    if (bytes > 0)
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
  operand(Role::weights, weights(slot.block), true, false);
  for (std::size_t i = 0; i < saved.size(); ++i)
    operand(Role::saved, saved[i], false, true, int(i));
  if (workspace >= 0) operand(Role::workspace, workspace, false, true);
  if (output >= 0) operand(Role::output, output, false, true);
  if (output >= 0) tp_collective(slot, Operation::all_reduce, output);
  if (kind != SegmentKind::head) return;
  if (model_.tied_head) table_operand(Role::weights, true, false);
  if (stage_.tp == 1) return loss_operands(slot);
  range(Role::targets, targets_, batch_first, batch_bytes_, true, false);
  run_loss(slot, saved);
}

/// Of a task that adds to the loss.
void Compiler::loss_operands(const Slot& slot) {
  range(Role::targets, targets_, slot.microbatch * batch_bytes_, batch_bytes_, true, false);
  program_.tasks.back().replaces = slot.microbatch == 0;
  operand(Role::loss, loss_, slot.microbatch > 0, true);
}

/// Tensor-parallel ranks know the loss of a token once they have the statistics of each one's part
/// of the logits, the last tensor that the head saves.
void Compiler::run_loss(const Slot& slot, const std::vector<int>& saved) {
  tp_collective(slot, Operation::all_gather, saved.back());
  add_task(Channel::compute, Operation::loss, slot).segment = SegmentKind::head;
  const int statistics = int(saved.size()) - 1, logits = statistics - 1;
  operand(Role::saved, saved[std::size_t(logits)], true, true, logits);
  operand(Role::saved, saved[std::size_t(statistics)], true, false, statistics);
  loss_operands(slot);
}

void Compiler::table_operand(Role role, bool reads, bool writes) {
  const bool of_weights = role == Role::weights;
  const int buffer = tied_across_stages() ? (of_weights ? tied_weights_ : tied_grads_)
                                          : (of_weights ? weights(0) : grads(0));
  elements(role, buffer, table_, reads, writes, 1);
}

void Compiler::backward(const Slot& slot) {
  const int m = slot.microbatch;
  Activations& kept = activations(m, slot.block);
  make_gradients(slot);
  if (is_head(slot.block))
    gradient_[m] = add_buffer(fmt::format("gradient#{}", m), Tier::device, Content::stream,
                              stream_bytes_, slot.block);
  if (recomputes(slot.block)) forward_segments(slot, Operation::recompute);
  std::vector<SegmentKind> kinds = segment_kinds(slot.block);
  std::ranges::reverse(kinds);
  for (SegmentKind kind : kinds) run_backward(slot, kind, kept.input.at(kind), kept.saved.at(kind));
  send_stream(slot);
  leave_gradients(slot);
  activations_.erase({m, slot.block});
}

void Compiler::run_backward(const Slot& slot, SegmentKind kind, int input,
                            const std::vector<int>& saved) {
  const SegmentBytes& sizes = segments_.at(kind);
  const int workspace = sizes.backward_workspace == 0
                            ? -1
                            : add_buffer("workspace", Tier::device, Content::workspace,
                                         sizes.backward_workspace, slot.block);
  const int gradient = gradient_.at(slot.microbatch);
  const bool replaces = slot.microbatch == 0 || state_.at(slot.block).grads_staged;

  Task& task = add_task(Channel::compute, Operation::backward, slot);
  task.segment = kind;
  task.replaces = replaces;
  if (kind == SegmentKind::embedding) {
    range(Role::input, input, slot.microbatch * batch_bytes_, batch_bytes_, true, false);
  } else {
    operand(Role::input, input, true, false);
    operand(Role::weights, weights(slot.block), true, false);
  }
  operand(Role::grads, grads(slot.block), !replaces || kind == SegmentKind::embedding, true);
  for (std::size_t i = 0; i < saved.size(); ++i)
    operand(Role::saved, saved[i], true, false, int(i));
  if (workspace >= 0) operand(Role::workspace, workspace, false, true);
  operand(Role::gradient, gradient, kind != SegmentKind::head, kind != SegmentKind::embedding);
  if (kind == SegmentKind::head && model_.tied_head) {
    table_operand(Role::weights, true, false);
    table_operand(Role::grads, true, true);
  }
  if (kind != SegmentKind::embedding) tp_collective(slot, Operation::all_reduce, gradient);
}

}  // namespace brume::schedule
