/// @file Weights and optimizer state that are sharded or offloaded: brought together for the slots
/// that use them, and put back after the update.
#include <algorithm>

#include "compiler.hpp"

namespace brume::schedule {

/// Blocks whose weights a slot's kernels read.
std::vector<int> Compiler::weights_of(const Slot& slot) const {
  const bool layer_or_head = is_layer(slot.block) || is_head(slot.block);
  // The backward of an embedding only adds rows to its gradient.
  if (slot.kind == Slot::Kind::update || (slot.kind == Slot::Kind::backward && !layer_or_head))
    return {};
  if (is_head(slot.block) && tied_within_stage()) return {slot.block, 0};
  return {slot.block};
}

/// Where kernels find a block's weights.
int Compiler::weights(int block) const {
  const BlockState& b = state_.at(block);
  return b.weights_staged ? assembled_.at(block) : b.weights.device_buffer;
}

void Compiler::prefetch_weights(const Slot& slot) {
  for (int block : weights_of(slot)) {
    const BlockState& b = state_.at(block);
    if (!b.weights_staged || assembled_.contains(block)) continue;
    const Slot of_block{slot.kind, slot.microbatch, block};
    assemble(of_block, b.weights.all());
    if (sharded_.weights) gather_weights(of_block);
  }
}

/// Copies what this rank holds of `part` to its place in a buffer of the whole block.
void Compiler::assemble(const Slot& slot, Range part) {
  const BlockState& b = state_.at(slot.block);
  const int whole = add_part("whole_weights", Tier::device, Content::weights, b.whole, slot.block);
  assembled_[slot.block] = whole;
  // The first forward uses what the update brings together, also when there is no update.
  const Phase phase = slot.kind == Slot::Kind::update ? Phase::both : Phase::train;
  // The first task takes all bytes. Were that the copy in, the copy on the compute channel would
  // wait for it, and so would the pass that is to hide it.
  if (const Range device = overlap(b.weights.device, part); device.count > 0) {
    add_task(Channel::compute, Operation::copy, slot).phase = phase;
    pair(b.weights.device_buffer, whole, device);
  }
  if (const Range host = overlap(b.weights.host, part); host.count > 0) {
    add_task(Channel::h2d, Operation::copy_in, slot).phase = phase;
    pair(b.weights.host_buffer, whole, host);
  }
}

void Compiler::gather_weights(const Slot& slot) {
  Task& task = add_task(Channel::collective_dp, Operation::all_gather, slot);
  task.group = Group::dp;
  if (state_.at(slot.block).weights_staged && slot.kind == Slot::Kind::update)
    task.phase = Phase::both;
  operand(Role::destination, weights(slot.block), true, true);
}

/// Lets go of what `slot` used, unless the next slot that computes uses it too.
void Compiler::release_weights(const Slot& slot, const Slot* next) {
  const std::vector<int> kept = next ? weights_of(*next) : std::vector<int>{};
  for (int block : weights_of(slot))
    if (std::ranges::find(kept, block) == kept.end()) assembled_.erase(block);
}

// --- the update ---------------------------------------------------------------------------------

/// Copies what the host holds of a part of a block's gradients to the device. @return where it will
/// be
int Compiler::stage_grads(const Slot& slot, Range part) {
  const int staged = add_part("staged_grads", Tier::device, Content::grads, part, slot.block);
  add_task(Channel::h2d, Operation::copy_in, slot);
  pair(state_.at(slot.block).grads.host_buffer, staged, part);
  return staged;
}

/// Copies offloaded optimizer state to the device.
void Compiler::stage_moments(const Slot& slot) {
  const Held& held = state_.at(slot.block).moments;
  if (held.offloaded().count == 0) return;
  read(slot);
  const int staged =
      add_part("staged_moments", Tier::device, Content::optimizer, held.offloaded(), slot.block);
  add_task(Channel::h2d, Operation::copy_in, slot);
  pair_moments(held.host_buffer, staged, held.host);
  if (const auto arrived = read_moments_.extract(slot.block))
    pair_moments(arrived.mapped(), staged, held.disk);
  staged_moments_[slot.block] = staged;
}

void Compiler::prefetch_update(const Slot& slot) {
  const BlockState& b = state_.at(slot.block);
  if (b.weights_staged) assemble(slot, b.shard);
  if (const Range host = overlap(b.grads.host, b.shard); host.count > 0)
    staged_grads_[slot.block] = stage_grads(slot, host);
  stage_moments(slot);
}

void Compiler::update(const Slot& slot) {
  const BlockState& b = state_.at(slot.block);
  add_task(Channel::compute, Operation::optimizer_step, slot);
  elements(Role::weights, weights(slot.block), b.shard, true, true);
  if (const Range device = overlap(b.grads.device, b.shard); device.count > 0)
    elements(Role::grads, b.grads.device_buffer, device, true, false);
  if (const auto staged = staged_grads_.extract(slot.block))
    operand(Role::grads, staged.mapped(), true, false, 1);
  if (b.moments.device_buffer >= 0) operand(Role::moments, b.moments.device_buffer, true, true);
  if (b.moments.offloaded().count > 0)
    operand(Role::moments, staged_moments_.at(slot.block), true, true, 1);
  operand(Role::totals, totals_, true, false);

  // What lies here of a whole block is complete once it is gathered: drain() stores it.
  if (b.weights_staged && !stored_after_gather()) store_weights(slot);
  if (sharded_.optimizer) gather_weights(slot);
  if (slot.block == 0 && tied_across_stages()) send_tied_weights(slot);
}

/// Whether a rank keeps weights that others updated, so that it stores them when they have come.
bool Compiler::stored_after_gather() const { return sharded_.optimizer && !sharded_.weights; }

/// Copies updated weights to where the device keeps them.
void Compiler::store_weights(const Slot& slot) {
  const Held& held = state_.at(slot.block).weights;
  if (held.device.count == 0) return;
  add_task(Channel::compute, Operation::copy, slot);
  pair(assembled_.at(slot.block), held.device_buffer, held.device);
}

void Compiler::drain_update(const Slot& slot) {
  const BlockState& b = state_.at(slot.block);
  if (const auto staged = staged_moments_.extract(slot.block)) {
    const Range on_disk = b.moments.disk;
    add_task(Channel::d2h, Operation::copy_out, slot);
    pair_moments(staged.mapped(), b.moments.host_buffer, b.moments.host);
    if (on_disk.count > 0) {
      const int leaving =
          add_part("leaving_moments", Tier::host, Content::optimizer, on_disk, slot.block);
      pair_moments(staged.mapped(), leaving, on_disk);
      unwritten_.push_back({slot, {leaving}});
    }
  }
  if (!b.weights_staged) return;
  if (stored_after_gather()) store_weights(slot);
  if (b.weights.host.count == 0) return;
  add_task(Channel::d2h, Operation::copy_out, slot);
  pair(assembled_.at(slot.block), b.weights.host_buffer, b.weights.host);
}

}  // namespace brume::schedule
