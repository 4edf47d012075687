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
