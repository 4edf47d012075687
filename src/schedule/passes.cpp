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
  if (is_head(slot.block) && options_.mode == Mode::evaluate) later_pieces(slot);
  if (recomputes(slot.block)) {
    kept.input = {{kinds.front(), kept.input.at(kinds.front())}};
    kept.saved.clear();
  }
  send_stream(slot);
}

/// Runs the segments of a block, each from the output of the one before it. The last one's output
/// goes to the next block; where it is only recomputed nobody needs it. With tp > 1 an output takes
/// the place of the input that was brought together.
void Compiler::forward_segments(const Slot& slot, Operation operation) {
  Activations& kept = activations(slot.microbatch, slot.block);
  const std::vector<SegmentKind> kinds = segment_kinds(slot.block);
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const SegmentKind kind = kinds[i];
    const bool last = i + 1 == kinds.size();
    const bool made = !is_head(slot.block) && !(last && operation == Operation::recompute);
    const bool in_place = stage_.tp > 1 && kind != SegmentKind::embedding;
    const char* name = last ? "output" : "middle";
    const int input = whole_input(slot, kind);
    if (last && operation == Operation::forward) gather_next();
    int output = -1;
    if (made) output = in_place ? input : add_stream(slot, name, stream_bytes_);
    kept.saved[kind] = make_saved(slot, kind);
    run_forward(slot, kind, operation, input, output, kept.saved[kind]);
    if (!made) continue;
    if (in_place) kept.whole.erase(kind);
    (last ? stream_[slot.microbatch] : kept.input[kinds[i + 1]]) = scatter(slot, output, name);
  }
}

std::vector<int> Compiler::make_saved(const Slot& slot, SegmentKind kind) {
  std::vector<int> saved;
  for (const auto& [name, bytes] : segments_.at(kind).saved)
    if (bytes > 0)
      saved.push_back(add_buffer(
          fmt::format("{}.{}#{}", blocks_[std::size_t(slot.block)].name, name, slot.microbatch),
          Tier::device, Content::saved, bytes, slot.block));
  return saved;
}

/// The head's other pieces, in the buffers of the first one. A training's head is at once followed
/// by its backward, so each piece goes both ways before the next.
void Compiler::later_pieces(const Slot& slot) {
  const int input = whole_input(slot, SegmentKind::head);
  const std::vector<int>& saved =
      activations(slot.microbatch, slot.block).saved.at(SegmentKind::head);
  for (int piece = 1; piece < num_pieces_; ++piece) {
    run_forward(slot, SegmentKind::head, Operation::forward, input, -1, saved, piece);
    if (slot.kind == Slot::Kind::backward)
      run_backward(slot, SegmentKind::head, input, saved, piece);
  }
}

/// The part of a stream or of tokens that a segment works on in one task: for the head a piece.
Range Compiler::of_piece(SegmentKind kind, int piece, std::int64_t bytes) const {
  if (kind != SegmentKind::head) return {0, bytes};
  const std::int64_t tokens = batch_bytes_ / model::token_bytes, first = piece * piece_tokens_;
  const std::int64_t of_token = bytes / tokens;
  return {first * of_token, std::min(piece_tokens_, tokens - first) * of_token};
}

void Compiler::run_forward(const Slot& slot, SegmentKind kind, Operation operation, int input,
                           int output, const std::vector<int>& saved, int piece) {
  const SegmentBuffers& sizes = segments_.at(kind);
  const int workspace = sizes.forward_workspace == 0
                            ? -1
                            : add_buffer("workspace", Tier::device, Content::workspace,
                                         sizes.forward_workspace, slot.block);

  add_task(Channel::compute, operation, slot).segment = kind;
  if (kind == SegmentKind::embedding)
    range(Role::input, input, slot.microbatch * batch_bytes_, batch_bytes_, true, false);
  else
    stream_operand(Role::input, kind, piece, input, true, false);
  operand(Role::weights, weights(slot.block), true, false);
  for (std::size_t i = 0; i < saved.size(); ++i)
    operand(Role::saved, saved[i], false, true, int(i));
  if (workspace >= 0) operand(Role::workspace, workspace, false, true);
  if (output >= 0) operand(Role::output, output, false, true);
  release_shard();
  if (kind != SegmentKind::head) return;
  if (model_.tied_head) table_operand(Role::weights, true, false);
  targets_operand(slot, piece);
  if (stage_.tp > 1) return run_loss(slot, saved, piece);
  loss_operand(slot, piece);
}

void Compiler::stream_operand(Role role, SegmentKind kind, int piece, int buffer, bool reads,
                              bool writes) {
  const Range part = of_piece(kind, piece, stream_bytes_);
  range(role, buffer, part.first, part.count, reads, writes);
}

void Compiler::targets_operand(const Slot& slot, int piece) {
  const Range part = of_piece(SegmentKind::head, piece, batch_bytes_);
  range(Role::targets, targets_, slot.microbatch * batch_bytes_ + part.first, part.count, true,
        false);
}

/// Of a task that adds to the loss.
void Compiler::loss_operand(const Slot& slot, int piece) {
  const bool first = slot.microbatch == 0 && piece == 0;
  program_.tasks.back().replaces = first;
  operand(Role::loss, loss_, !first, true);
}

/// Tensor-parallel ranks know the loss of a token once they have the statistics of each one's part
/// of the logits, the last tensor that the head saves.
void Compiler::run_loss(const Slot& slot, const std::vector<int>& saved, int piece) {
  const int statistics = int(saved.size()) - 1, logits = statistics - 1;
  const std::int64_t bytes = program_.buffers[std::size_t(saved.back())].bytes / piece_tokens_ *
                             of_piece(SegmentKind::head, piece, batch_bytes_).count /
                             model::token_bytes;
  add_task(Channel::collective_tp, Operation::all_gather, slot).group = Group::tp;
  range(Role::destination, saved.back(), 0, bytes, true, true);
  add_task(Channel::compute, Operation::loss, slot).segment = SegmentKind::head;
  operand(Role::saved, saved[std::size_t(logits)], true, true, logits);
  range(Role::saved, saved.back(), 0, bytes, true, false, statistics);
  targets_operand(slot, piece);
  loss_operand(slot, piece);
}

void Compiler::table_operand(Role role, bool reads, bool writes) {
  const bool of_weights = role == Role::weights;
  const int buffer = tied_across_stages() ? (of_weights ? tied_weights_ : tied_grads_)
                                          : (of_weights ? weights(0) : grads(0));
  elements(role, buffer, table_, reads, writes, 1);
}

void Compiler::backward(const Slot& slot) {
  const int m = slot.microbatch;
  const bool arrived = slot.block == range_.last && !last_stage();
  if (arrived) gradient_[m] = gather(slot, gradient_.at(m));
  make_gradients(slot);
  if (is_head(slot.block)) gradient_[m] = add_stream(slot, "gradient", stream_bytes_);
  if (recomputes(slot.block)) forward_segments(slot, Operation::recompute);
  std::vector<SegmentKind> kinds = segment_kinds(slot.block);
  std::ranges::reverse(kinds);
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const bool last = i + 1 == kinds.size();
    const int input = whole_input(slot, kinds[i]);
    if (last)
      gather_next();
    else if (options_.overlap)
      gather_beside(slot, kinds[i + 1]);
    run_backward(slot, kinds[i], input, activations(m, slot.block).saved.at(kinds[i]));
    if (is_head(slot.block)) later_pieces(slot);
    if (kinds[i] != SegmentKind::embedding) sum_gradient(slot, last);
  }
  send_stream(slot);
  leave_gradients(slot);
  activations_.erase({m, slot.block});
}

void Compiler::run_backward(const Slot& slot, SegmentKind kind, int input,
                            const std::vector<int>& saved, int piece) {
  const SegmentBuffers& sizes = segments_.at(kind);
  const int workspace = sizes.backward_workspace == 0
                            ? -1
                            : add_buffer("workspace", Tier::device, Content::workspace,
                                         sizes.backward_workspace, slot.block);
  const int gradient = gradient_.at(slot.microbatch);
  const bool replaces = piece == 0 && (slot.microbatch == 0 || state_.at(slot.block).grads_staged);

  Task& task = add_task(Channel::compute, Operation::backward, slot);
  task.segment = kind;
  task.replaces = replaces;
  if (kind == SegmentKind::embedding) {
    range(Role::input, input, slot.microbatch * batch_bytes_, batch_bytes_, true, false);
  } else {
    stream_operand(Role::input, kind, piece, input, true, false);
    operand(Role::weights, weights(slot.block), true, false);
  }
  operand(Role::grads, grads(slot.block), !replaces || kind == SegmentKind::embedding, true);
  for (std::size_t i = 0; i < saved.size(); ++i)
    operand(Role::saved, saved[i], true, false, int(i));
  if (workspace >= 0) operand(Role::workspace, workspace, false, true);
  stream_operand(Role::gradient, kind, piece, gradient, kind != SegmentKind::head,
                 kind != SegmentKind::embedding);
  if (kind == SegmentKind::head && model_.tied_head) {
    table_operand(Role::weights, true, false);
    table_operand(Role::grads, true, true);
  }
  release_shard();
}

}  // namespace brume::schedule
