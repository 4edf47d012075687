#include "stores.hpp"

#include <algorithm>

namespace brume::schedule {

/// Blocks whose weights a pass's kernels read.
std::vector<int> Weights::blocks_of(const Slot& slot) const {
  const bool layer_or_head = context_.is_layer(slot.block) || context_.is_head(slot.block);
  // The backward of an embedding only adds rows to its gradient.
  if (slot.kind == Slot::Kind::update || (slot.kind != Slot::Kind::forward && !layer_or_head))
    return {};
  if (context_.is_head(slot.block) && context_.tied_within_stage()) return {slot.block, 0};
  return {slot.block};
}

BufferId Weights::use(int block) const {
  const BlockState& b = persistent_.block(block);
  return b.weights_staged ? assembled_.at(block) : b.weights.front().device_buffer;
}

void Weights::prefetch(const Slot& slot) {
  if (slot.kind == Slot::Kind::update) {
    const BlockState& b = persistent_.block(slot.block);
    if (b.weights_staged) assemble(slot, b.shard);
    return;
  }
  for (int block : blocks_of(slot)) {
    const BlockState& b = persistent_.block(block);
    if (!b.weights_staged || assembled_.contains(block)) continue;
    const Slot of_block{slot.kind, slot.microbatch, block};
    assemble(of_block, b.trained);
    if (context_.sharded.weights) all_gather(of_block);
  }
}

/// Copies what this rank holds, of what is trained a part of it, to its place in a buffer of the
/// whole block.
void Weights::assemble(const Slot& slot, Range of_trained) {
  const BlockState& b = persistent_.block(slot.block);
  const BufferId whole =
      build_.add_part("whole_weights", Tier::device, Content::weights, b.whole, slot.block);
  assembled_[slot.block] = whole;
  // The first forward uses what the update brings together, also when there is no update.
  const Phase phase = slot.kind == Slot::Kind::update ? Phase::both : Phase::train;
  std::vector<Move> from_device, from_host;
  for (const TieredState& kept : b.weights) {
    const bool trained = kept.device.first < b.trained.count;
    const Range part = trained ? of_trained : b.frozen;
    from_device.push_back({kept.device_buffer, whole, overlap(kept.device, part)});
    from_host.push_back({kept.host_buffer, whole, overlap(kept.host, part)});
  }
  // The first task takes all bytes. Were that the copy in, the copy on the compute channel would
  // wait for it, and so would the pass that is to hide it.
  for (const auto& [operation, moves] :
       {std::pair(Operation::copy, from_device), std::pair(Operation::copy_in, from_host)})
    if (std::vector<Operand> operands = build_.moves(moves); !operands.empty())
      build_.add(slot, operation, std::move(operands), {.phase = phase});
}

/// What is trained and what is frozen are each cut over ranks.
void Weights::all_gather(const Slot& slot) {
  const BlockState& b = persistent_.block(slot.block);
  const bool staged_update = b.weights_staged && slot.kind == Slot::Kind::update;
  const model::AxisSet holders =
      context_.block(slot.block).reduction_axes().without(model::Axis::replica);
  const auto gather = [&](Range part) {
    if (part.count > 0)
      build_.add(slot, Operation::all_gather,
                 {updates(Role::destination, build_.elements(use(slot.block), part))},
                 {.phase = staged_update ? Phase::both : Phase::train, .group = holders});
  };
  gather(b.trained);
  if (context_.sharded.weights) gather(b.frozen);
}

void Weights::gather(const Slot& update) {
  // What lies here of a whole block is complete once it is gathered: drain() stores it.
  if (persistent_.block(update.block).weights_staged && !stored_after_gather()) store(update);
  if (context_.sharded.optimizer) all_gather(update);
}

/// Whether a rank keeps weights that others updated, so that it stores them when they have come.
bool Weights::stored_after_gather() const {
  return context_.sharded.optimizer && !context_.sharded.weights;
}

/// Copies updated weights to where the device keeps them.
void Weights::store(const Slot& slot) {
  const TieredState& kept = persistent_.block(slot.block).weights.front();
  if (kept.device.count == 0) return;
  build_.add(slot, Operation::copy,
             build_.moves({{assembled_.at(slot.block), kept.device_buffer, kept.device}}));
}

void Weights::drain(const Slot& slot) {
  const BlockState& b = persistent_.block(slot.block);
  if (slot.kind != Slot::Kind::update || !b.weights_staged) return;
  if (stored_after_gather()) store(slot);
  const TieredState& kept = b.weights.front();
  if (kept.host.count == 0) return;
  build_.add(slot, Operation::copy_out,
             build_.moves({{assembled_.at(slot.block), kept.host_buffer, kept.host}}));
}

void Weights::leave(const Slot& slot, const Slot* next) {
  const std::vector<int> kept = next ? blocks_of(*next) : std::vector<int>{};
  for (int block : blocks_of(slot))
    if (std::ranges::find(kept, block) == kept.end()) assembled_.erase(block);
}

}  // namespace brume::schedule
