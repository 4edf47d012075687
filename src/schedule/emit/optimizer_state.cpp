#include "stores.hpp"

namespace brume::schedule {

void OptimizerState::read(const Slot& slot) {
  if (slot.kind != Slot::Kind::update) return;
  const TieredState& kept = persistent_.block(slot.block).moments;
  if (kept.disk.count == 0 || read_.contains(slot.block)) return;
  const BufferId read =
      build_.add_part("read_moments", Tier::host, Content::optimizer, kept.disk, slot.block);
  read_[slot.block] = read;
  build_.add(slot, Operation::read, build_.moves({{kept.disk_buffer, read, kept.disk}}));
}

void OptimizerState::prefetch(const Slot& slot) {
  if (slot.kind != Slot::Kind::update) return;
  const TieredState& kept = persistent_.block(slot.block).moments;
  send_down(slot);
  if (kept.offloaded().count == 0) return;
  read(slot);
  const BufferId staged = build_.add_part("staged_moments", Tier::device, Content::optimizer,
                                          kept.offloaded(), slot.block);
  const auto arrived = read_.extract(slot.block);
  build_.add(slot, Operation::copy_in,
             build_.moves({{kept.host_buffer, staged, kept.host},
                           {arrived ? arrived.mapped() : BufferId::none, staged, kept.disk}}));
  staged_[slot.block] = staged;
}

std::vector<Operand> OptimizerState::use(int block) const {
  const TieredState& kept = persistent_.block(block).moments;
  std::vector<Operand> operands;
  if (kept.device.count > 0) operands.push_back(updates(Role::moments, kept.device_buffer));
  if (kept.offloaded().count > 0) operands.push_back(updates(Role::moments, staged_.at(block), 1));
  return operands;
}

/// Below fp32 the weights that are stepped are on the host, beside the moments.
void OptimizerState::send_down(const Slot& update) {
  const BlockState& b = persistent_.block(update.block);
  const Range stepped = b.moments.host_updated;
  if (stepped.count == 0) return;
  const auto add = [&](const char* name, Content content, Range part) {
    return build_.add_part(name, Tier::host, content, part, update.block);
  };
  ForHost& here = for_host_[update.block];
  here.weights = add("stepped_weights", Content::weights, stepped);
  std::vector<Move> moves;
  if (const Range part = overlap(b.grads.device, stepped); part.count > 0) {
    here.grads = add("stepped_grads", Content::grads, part);
    moves.push_back({b.grads.device_buffer, here.grads, part});
  }
  if (context_.model.precision == model::Precision::fp32) {
    const TieredState& weights = b.weights.front();
    moves.push_back({weights.device_buffer, here.weights, overlap(weights.device, stepped)});
    moves.push_back({weights.host_buffer, here.weights, overlap(weights.host, stepped)});
  }
  if (std::vector<Operand> operands = build_.moves(moves); !operands.empty())
    build_.add(update, Operation::copy_out, std::move(operands));
}

void OptimizerState::step_on_host(const Slot& update, BufferId weights) {
  const auto found = for_host_.extract(update.block);
  if (!found) return;
  const BlockState& b = persistent_.block(update.block);
  const Range stepped = b.moments.host_updated;
  const ForHost& here = found.mapped();
  const bool came_down = context_.model.precision == model::Precision::fp32;
  std::vector<Operand> operands{came_down ? updates(Role::weights, here.weights)
                                          : writes(Role::weights, here.weights)};
  if (here.grads != BufferId::none) operands.push_back(reads(Role::grads, here.grads));
  if (const Range part = overlap(b.grads.host, stepped); part.count > 0)
    operands.push_back(reads(Role::grads, build_.elements(b.grads.host_buffer, part), 1));
  operands.push_back(updates(Role::moments, b.moments.host_updated_buffer));
  build_.add(update, Operation::host_step, std::move(operands));
  build_.add(update, Operation::copy_in, build_.moves({{here.weights, weights, stepped}}));
}

void OptimizerState::drain(const Slot& slot) {
  if (slot.kind != Slot::Kind::update) return;
  const auto found = staged_.extract(slot.block);
  if (!found) return;
  const TieredState& kept = persistent_.block(slot.block).moments;
  BufferId leaving = BufferId::none;
  if (kept.disk.count > 0) {
    leaving =
        build_.add_part("leaving_moments", Tier::host, Content::optimizer, kept.disk, slot.block);
    unwritten_[slot.block] = leaving;
  }
  build_.add(slot, Operation::copy_out,
             build_.moves({{found.mapped(), kept.host_buffer, kept.host},
                           {found.mapped(), leaving, kept.disk}}));
}

void OptimizerState::write(const Slot& slot) {
  if (slot.kind != Slot::Kind::update) return;
  const auto found = unwritten_.extract(slot.block);
  if (!found) return;
  const TieredState& kept = persistent_.block(slot.block).moments;
  build_.add(slot, Operation::write, build_.moves({{found.mapped(), kept.disk_buffer, kept.disk}}));
}

}  // namespace brume::schedule
