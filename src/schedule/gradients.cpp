/// @file Gradients on their way from a backward to where they are kept: reduced over ranks, added
/// up over microbatches, moved to the host.
#include <utility>

#include "compiler.hpp"

namespace brume::schedule {

/// Where kernels write a block's gradients.
int Compiler::grads(int block) const {
  const BlockState& b = state_.at(block);
  return b.grads_staged ? fresh_grads_.at(block) : b.grads.device_buffer;
}

/// @return false while earlier microbatches' part has not left for the host
bool Compiler::prefetch_gradients(const Slot& slot) {
  if (slot.kind != Slot::Kind::backward || slot.microbatch == 0) return true;
  const Held& held = state_.at(slot.block).grads;
  if (held.host.count == 0) return true;
  const auto summed = summed_.find(slot.block);
  if (summed == summed_.end() || summed->second != slot.microbatch - 1) return false;
  if (staged_grads_.contains(slot.block)) return true;
  staged_grads_[slot.block] = stage_grads(slot, held.host);
  return true;
}

/// Before a backward. The token and position tables get their gradients by adding rows, so they
/// start from zero.
void Compiler::make_gradients(const Slot& slot) {
  const auto make = [&](int block, bool clears) {
    const BlockState& b = state_.at(block);
    if (b.grads_staged)
      fresh_grads_[block] = add_part("fresh_grads", Tier::device, Content::grads, b.whole, block);
    if (!clears || (!b.grads_staged && slot.microbatch > 0)) return;
    add_task(Channel::compute, Operation::clear, {slot.kind, slot.microbatch, block});
    operand(Role::grads, grads(block), false, true);
  };
  if (is_layer(slot.block)) return make(slot.block, false);
  if (is_head(slot.block)) {
    make(slot.block, false);
    if (tied_grads_ >= 0 && slot.microbatch == 0) {
      add_task(Channel::compute, Operation::clear, slot);
      operand(Role::grads, tied_grads_, false, true);
    }
  }
  // A tied head on the same stage is the first to add to the table.
  if (is_head(slot.block) == tied_within_stage()) make(0, true);
}

/// After a backward: reduces over other ranks what must be, and stores what the backward did not
/// write to its place. What waits for a reduction is done one slot later.
void Compiler::leave_gradients(const Slot& slot) {
  const bool last = last_microbatch(slot), staged = state_.at(slot.block).grads_staged;
  settle(slot.block);  // of an earlier microbatch, in a stage of one block
  if (!last && !staged) return;
  Gradients gradients{.slot = slot};
  if (staged) {
    gradients.fresh = fresh_grads_.at(slot.block);
    if (const auto arrived = staged_grads_.extract(slot.block)) gradients.staged = arrived.mapped();
    if (last && slot.microbatch > 0) add_kept_gradients(gradients);
  }
  const bool reduces = (last || sharded_.grads) && reduce_gradients(slot);
  unsettled_[slot.block] = gradients;
  fresh_grads_.erase(slot.block);
  // Norms are added in the order of the blocks, whatever overlaps.
  if (!reduces && unsettled_.size() == 1) settle(slot.block);
}

/// Adds the sum of the earlier microbatches to the last one, so that the whole is reduced.
void Compiler::add_kept_gradients(const Gradients& gradients) {
  const Held& held = state_.at(gradients.slot.block).grads;
  add_task(Channel::compute, Operation::accumulate, gradients.slot);
  pair(held.device_buffer, gradients.fresh, held.device, true);
  pair(gradients.staged, gradients.fresh, held.host, true);
}

/// @return whether other ranks take part
bool Compiler::reduce_gradients(const Slot& slot) {
  const bool last = last_microbatch(slot);
  if (last && slot.block == 0 && tied_across_stages()) receive_tied_gradients(slot);
  const std::int64_t partial = state_.at(slot.block).layout.partial_elements;
  const bool over_tp = last && stage_.tp > 1 && partial > 0;
  if (over_tp) {
    add_task(Channel::collective_tp, Operation::all_reduce, slot).group = Group::tp;
    elements(Role::destination, grads(slot.block), {0, partial}, true, true);
  }
  if (stage_.dp == 1) return over_tp;
  add_task(Channel::collective_dp,
           sharded_.optimizer ? Operation::reduce_scatter : Operation::all_reduce, slot)
      .group = Group::dp;
  operand(Role::destination, grads(slot.block), true, true);
  return true;
}

/// What had to wait for a block's reduction.
void Compiler::settle(int block) {
  const auto found = unsettled_.extract(block);
  if (!found) return;
  const Gradients& gradients = found.mapped();
  const bool staged = gradients.fresh >= 0;
  if (last_microbatch(gradients.slot))
    norm(gradients.slot, staged ? gradients.fresh : state_.at(block).grads.device_buffer);
  if (staged) store_gradients(gradients);
}

/// To the device's part at once, to the host's part by way of a staging buffer.
void Compiler::store_gradients(const Gradients& gradients) {
  const int block = gradients.slot.block;
  const BlockState& b = state_.at(block);
  const bool last = last_microbatch(gradients.slot);
  const bool replaces = last || gradients.slot.microbatch == 0;
  const Range part = last ? b.shard : b.grads.all();
  const Range device = overlap(b.grads.device, part), host = overlap(b.grads.host, part);
  int staged = gradients.staged;
  if (replaces && host.count > 0)
    staged = add_part("leaving_grads", Tier::device, Content::grads, host, block);
  add_task(Channel::compute, replaces ? Operation::copy : Operation::accumulate, gradients.slot);
  pair(gradients.fresh, b.grads.device_buffer, device, !replaces);
  pair(gradients.fresh, staged, host, !replaces);
  if (host.count > 0) leaving_[block] = {gradients.slot, staged};
}

/// Adds a block's share to the totals. Each data-parallel rank counts its part of the block,
/// whether or not the rest is here too; -1: no block, the loss alone.
void Compiler::norm(const Slot& slot, int buffer) {
  const bool first = !std::exchange(norm_begun_, true);
  add_task(Channel::compute, Operation::norm, slot).replaces = first;
  if (first && loss_ >= 0) operand(Role::loss, loss_, true, false);
  if (buffer >= 0) {
    const std::int64_t count = state_.at(slot.block).whole.count / stage_.dp;
    elements(Role::grads, buffer, {place_.dp_rank * count, count}, true, false);
  }
  operand(Role::totals, totals_, !first, true);
}

/// Blocks whose gradients are about to go to the host.
std::vector<int> Compiler::leaving() const {
  std::vector<int> blocks;
  for (const auto& [block, where] : leaving_) blocks.push_back(block);
  return blocks;
}

void Compiler::copy_out_gradients(const std::vector<int>& blocks) {
  for (int block : blocks) {
    const auto [slot, staged] = leaving_.extract(block).mapped();
    const Buffer& from = program_.buffers[std::size_t(staged)];
    const Range part{from.first_element, from.bytes / model::grad_bytes};
    add_task(Channel::d2h, Operation::copy_out, slot);
    pair(staged, state_.at(block).grads.host_buffer, part);
    summed_[block] = slot.microbatch;
  }
}

}  // namespace brume::schedule
