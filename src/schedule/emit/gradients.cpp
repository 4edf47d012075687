#include "stores.hpp"

#include <utility>

namespace brume::schedule {

bool Gradients::prefetch(const Slot& slot) {
  const BlockState& b = persistent_.block(slot.block);
  if (slot.kind == Slot::Kind::update) {
    if (const Range host = overlap(b.grads.host, b.device_updated()); host.count > 0)
      staged_[slot.block] = stage(slot, host);
    return true;
  }
  if (slot.kind == Slot::Kind::forward || slot.microbatch == 0 || b.grads.host.count == 0)
    return true;
  const auto summed = summed_.find(slot.block);
  if (summed == summed_.end() || summed->second != slot.microbatch - 1) return false;
  if (!staged_.contains(slot.block)) staged_[slot.block] = stage(slot, b.grads.host);
  return true;
}

/// Copies what the host holds of a part of a block's gradients to the device.
/// @return where it will be
BufferId Gradients::stage(const Slot& slot, Range part) {
  const BufferId staged =
      build_.add_part("staged_grads", Tier::device, Content::grads, part, slot.block);
  const BufferId host = persistent_.block(slot.block).grads.host_buffer;
  build_.add(slot, Operation::copy_in, build_.moves({{host, staged, part}}));
  return staged;
}

BufferId Gradients::use(int block) const {
  const BlockState& b = persistent_.block(block);
  return b.grads_staged ? fresh_.at(block) : b.grads.device_buffer;
}

std::vector<Operand> Gradients::use_in_update(int block) {
  const BlockState& b = persistent_.block(block);
  std::vector<Operand> operands;
  if (const Range device = overlap(b.grads.device, b.device_updated()); device.count > 0)
    operands.push_back(reads(Role::grads, build_.elements(b.grads.device_buffer, device)));
  if (const auto staged = staged_.extract(block))
    operands.push_back(reads(Role::grads, staged.mapped(), 1));
  if (model::matrix_workspace(context_.model, context_.block(block)).bytes() == 0) return operands;
  if (b.grads.device.count == b.trained.count) {
    directions_ = b.grads.device_buffer;
    operands.front().writes = true;
  } else {
    directions_ = build_.add_part("directions", Tier::device, Content::grads, b.trained, block);
    operands.push_back(writes(Role::directions, build_.elements(directions_, b.device_updated())));
  }
  return operands;
}

std::vector<Operand> Gradients::bring_directions(const Slot& update) {
  const BufferId made = std::exchange(directions_, BufferId::none);
  if (made == BufferId::none) return {};
  const model::Block& block = context_.block(update.block);
  if (context_.sharded.optimizer)
    build_.add(update, Operation::all_gather, {updates(Role::destination, made)},
               {.group = block.reduction_axes().without(model::Axis::replica)});
  std::vector<Operand> operands{reads(Role::directions, made)};
  const int tp = context_.stage.tp;
  const auto [first, end] =
      model::cut_matrices(block, context_.layout(update.block), tp, context_.stage.ep);
  if (const Range cut{first, end - first}; cut.count > 0) {
    const BufferId parts = build_.add(block.name + ".all_directions", Tier::device, Content::grads,
                                      tp * cut.count * model::grad_bytes, update.block, false, cut);
    build_.add(update, Operation::all_gather,
               {writes(Role::destination, parts), reads(Role::source, build_.elements(made, cut))},
               {.group = model::Axis::tp});
    operands.push_back(reads(Role::directions, parts, 1));
  }
  return operands;
}

void Gradients::begin(const Slot& slot) {
  if (context_.is_layer(slot.block) || context_.is_head(slot.block)) make(slot, slot.block);
  // A tied head on the same stage is the first to add to the table.
  const bool head_adds = context_.tied_within_stage() && context_.model.trains_table();
  if (!context_.is_layer(slot.block) && context_.is_head(slot.block) == head_adds) make(slot, 0);
}

/// The token and position tables get their gradients by adding rows, so they start from zero.
void Gradients::make(const Slot& slot, int block) {
  if (!context_.updates(block)) return;
  const BlockState& b = persistent_.block(block);
  if (b.grads_staged)
    fresh_[block] = build_.add_part("fresh_grads", Tier::device, Content::grads, b.trained, block);
  if (block == 0 && (b.grads_staged || slot.microbatch == 0))
    build_.add({slot.kind, slot.microbatch, block}, Operation::clear,
               {writes(Role::grads, use(block))});
}

void Gradients::leave(const Slot& slot) {
  if (!context_.updates(slot.block)) return;
  const bool last = context_.last_microbatch(slot);
  const bool staged = persistent_.block(slot.block).grads_staged;
  settle(slot.block);  // of an earlier microbatch, in a stage of one block
  if (!last && !staged) return;
  Unsettled gradients{.slot = slot};
  if (staged) {
    gradients.fresh = fresh_.at(slot.block);
    if (const auto arrived = staged_.extract(slot.block)) gradients.staged = arrived.mapped();
    if (last && slot.microbatch > 0) add_kept(gradients);
  }
  const bool reduces = (last || context_.sharded.grads) && reduce(slot);
  unsettled_[slot.block] = gradients;
  fresh_.erase(slot.block);
  // Norms are added in the order of the blocks, whatever overlaps.
  if (!reduces && unsettled_.size() == 1) settle(slot.block);
}

/// Adds the sum of the earlier microbatches to the last one, so that the whole is reduced.
void Gradients::add_kept(const Unsettled& gradients) {
  const TieredState& kept = persistent_.block(gradients.slot.block).grads;
  build_.add(gradients.slot, Operation::accumulate,
             build_.moves({{kept.device_buffer, gradients.fresh, kept.device},
                           {gradients.staged, gradients.fresh, kept.host}},
                          true));
}

/// @return whether other ranks take part
bool Gradients::reduce(const Slot& slot) {
  const bool last = context_.last_microbatch(slot);
  const BufferId grads = use(slot.block);
  if (last && slot.block == 0) tied_.receive_grads(slot, grads);
  const BlockState& b = persistent_.block(slot.block);
  const plan::Mesh<int>& mesh = context_.place.mesh;
  const model::AxisSet holders = context_.block(slot.block).reduction_axes();
  const bool shards = context_.sharded.optimizer, over_dp = mesh.size(holders) > 1;
  const auto all_reduce = [&](Range part, model::AxisSet axes) {
    if (part.count == 0 || mesh.size(axes) == 1) return false;
    build_.add(slot, Operation::all_reduce,
               {updates(Role::destination, build_.elements(grads, part))}, {.group = axes});
    return true;
  };
  const bool over_tp = last && all_reduce({0, b.partial_elements}, model::Axis::tp);
  if (over_dp && !shards) all_reduce(b.trained, holders);
  if (over_dp && shards)
    build_.add(slot, Operation::reduce_scatter, {updates(Role::destination, grads)},
               {.group = holders.without(model::Axis::replica)});
  if (!last) return over_dp;
  const Range mine = shards ? b.shard : b.trained;
  if (shards) all_reduce(mine, model::Axis::replica);
  const bool over_ep = all_reduce(overlap(mine, {0, b.dense_elements}), model::Axis::ep);
  return over_tp || over_dp || over_ep;
}

void Gradients::drain(const Slot& slot) {
  const auto found = unsettled_.find(slot.block);
  if (found != unsettled_.end() && found->second.slot == slot) settle(slot.block);
}

/// What had to wait for a block's reduction. Each data-parallel rank counts its part of the block
/// in the norm, whether or not the rest is here too.
void Gradients::settle(int block) {
  const auto found = unsettled_.extract(block);
  if (!found) return;
  const Unsettled& gradients = found.mapped();
  const BlockState& b = persistent_.block(block);
  const bool staged = gradients.fresh != BufferId::none;
  if (context_.last_microbatch(gradients.slot)) {
    const plan::Place& place = context_.place;
    const std::int64_t count =
        b.trained.count / place.mesh.size(context_.block(block).reduction_axes());
    const int part = place.at[model::Axis::shard] * place.mesh.size(model::Axis::replica) +
                     place.at[model::Axis::replica];
    norm(gradients.slot,
         build_.elements(staged ? gradients.fresh : b.grads.device_buffer, {part * count, count}));
  }
  if (staged) store(gradients);
}

/// To the device's part at once, to the host's part by way of a staging buffer.
void Gradients::store(const Unsettled& gradients) {
  const int block = gradients.slot.block;
  const BlockState& b = persistent_.block(block);
  const bool last = context_.last_microbatch(gradients.slot);
  const bool replaces = last || gradients.slot.microbatch == 0;
  const Range part = last ? b.shard : b.grads.all();
  const Range device = overlap(b.grads.device, part), host = overlap(b.grads.host, part);
  BufferId staged = gradients.staged;
  if (replaces && host.count > 0)
    staged = build_.add_part("leaving_grads", Tier::device, Content::grads, host, block);
  build_.add(gradients.slot, replaces ? Operation::copy : Operation::accumulate,
             build_.moves({{gradients.fresh, b.grads.device_buffer, device},
                           {gradients.fresh, staged, host}},
                          !replaces));
  if (host.count > 0) leaving_[block] = {gradients.slot, staged, host};
}

void Gradients::copy_out(const Slot* but) {
  std::erase_if(leaving_, [&](const auto& entry) {
    const auto& [block, leaving] = entry;
    if (but && leaving.slot == *but) return false;
    const BufferId host = persistent_.block(block).grads.host_buffer;
    build_.add(leaving.slot, Operation::copy_out,
               build_.moves({{leaving.staged, host, leaving.part}}));
    summed_[block] = leaving.slot.microbatch;
    return true;
  });
}

void Gradients::finish(const Slot& last) {
  if (!norm_begun_) norm(last, {});
}

void Gradients::norm(const Slot& slot, std::optional<Part> part) {
  const bool first = !std::exchange(norm_begun_, true);
  std::vector<Operand> operands;
  if (first && persistent_.loss != BufferId::none)
    operands.push_back(reads(Role::loss, persistent_.loss));
  if (part) operands.push_back(reads(Role::grads, *part));
  operands.push_back(first ? writes(Role::totals, persistent_.totals)
                           : updates(Role::totals, persistent_.totals));
  build_.add(slot, Operation::norm, std::move(operands), {.replaces = first});
}

}  // namespace brume::schedule
