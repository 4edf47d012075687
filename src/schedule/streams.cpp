/// @file The stream between segments. With tp > 1 each rank keeps a shard of its tokens: parts of
/// the sum are reduced to shards after a segment, shards are brought together before the next one.
#include <fmt/format.h>

#include "compiler.hpp"

namespace brume::schedule {

int Compiler::add_stream(const Slot& slot, const char* what, std::int64_t bytes) {
  return add_buffer(
      fmt::format("{}.{}#{}", blocks_[std::size_t(slot.block)].name, what, slot.microbatch),
      Tier::device, Content::stream, bytes, slot.block);
}

/// @return a buffer of all tokens; with tp = 1 it is `shard`
int Compiler::gather(const Slot& slot, int shard) {
  if (stage_.tp == 1) return shard;
  const int whole = add_stream(slot, "whole", stream_bytes_);
  add_task(Channel::collective_tp, Operation::all_gather, slot).group = Group::tp;
  operand(Role::destination, whole, false, true);
  operand(Role::source, shard, true, false);
  return whole;
}

/// @param part  of the sum over tensor-parallel ranks, of all tokens
/// @return this rank's shard of the sum; with tp = 1 it is `part`
int Compiler::scatter(const Slot& slot, int part, const char* what) {
  if (stage_.tp == 1) return part;
  const int shard = add_stream(slot, what, shard_bytes_);
  add_task(Channel::collective_tp, Operation::reduce_scatter, slot).group = Group::tp;
  operand(Role::source, part, true, true);
  operand(Role::destination, shard, false, true);
  return shard;
}

/// Sums the parts of a gradient over tensor-parallel ranks. What leaves the stage is a shard; else
/// the next segment needs all tokens and nobody keeps a shard, so it stays in place, and what
/// computes meanwhile finds no bytes to wait for.
void Compiler::sum_gradient(const Slot& slot, bool last_segment) {
  int& gradient = gradient_.at(slot.microbatch);
  if (last_segment && slot.block == range_.first) {
    gradient = scatter(slot, gradient, "gradient");
  } else if (stage_.tp > 1) {
    add_task(Channel::collective_tp, Operation::all_reduce, slot).group = Group::tp;
    operand(Role::destination, gradient, true, true);
  }
}

/// Where a segment's kernels find its input: brought together, unless it is there.
int Compiler::whole_input(const Slot& slot, SegmentKind kind) {
  Activations& kept = activations(slot.microbatch, slot.block);
  const int input = kept.input.at(kind);
  if (stage_.tp == 1 || kind == SegmentKind::embedding) return input;
  const auto [entry, fresh] = kept.whole.try_emplace(kind, -1);
  if (fresh) entry->second = gather(slot, input);
  return entry->second;
}

/// Brings an input together beside the segment that is about to compute. The shard stays until that
/// is done: were its bytes free at once, what computes could take them, and so wait.
void Compiler::gather_beside(const Slot& slot, SegmentKind kind) {
  const Activations& kept = activations(slot.microbatch, slot.block);
  if (stage_.tp == 1 || kind == SegmentKind::embedding || kept.whole.contains(kind)) return;
  whole_input(slot, kind);
  shard_beside_ = kept.input.at(kind);
}

/// Before a slot's last segment computes: the next slot's first segment gets its input, where that
/// is kept here. A forward's comes from the segment that is about to compute, or from afar.
void Compiler::gather_next() {
  if (next_ == nullptr || next_->kind != Slot::Kind::backward) return;
  const std::vector<SegmentKind> kinds = segment_kinds(next_->block);
  gather_beside(*next_, recomputes(next_->block) ? kinds.front() : kinds.back());
}

/// After the segment that it was brought together beside.
void Compiler::release_shard() {
  if (shard_beside_ >= 0) keep_until_now(shard_beside_);
  shard_beside_ = -1;
}

}  // namespace brume::schedule
