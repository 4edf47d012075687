/// @file Transfers of a slot: what it needs before it computes, and what it leaves behind.
#include <fmt/format.h>

#include "compiler.hpp"

namespace brume::schedule {

std::optional<Channel> Compiler::sends_on(const Slot& slot) const {
  if (slot.kind == Slot::Kind::forward && slot.block == range_.last && !last_stage())
    return Channel::p2p_forward;
  if (slot.kind == Slot::Kind::backward && slot.block == range_.first && place_.stage > 0)
    return Channel::p2p_backward;
  return std::nullopt;
}

std::optional<Channel> Compiler::receives_on(const Slot& slot) const {
  if (slot.kind == Slot::Kind::forward && slot.block == range_.first && place_.stage > 0)
    return Channel::p2p_forward;
  if (slot.kind == Slot::Kind::backward && slot.block == range_.last && !last_stage())
    return Channel::p2p_backward;
  return std::nullopt;
}

bool Compiler::receive(const Slot& slot) {
  const std::optional<Channel> channel = receives_on(slot);
  if (!channel) return true;
  const bool forward = *channel == Channel::p2p_forward;
  const int buffer =
      add_buffer(fmt::format("{}#{}", forward ? "stream" : "gradient", slot.microbatch),
                 Tier::device, Content::stream, stream_bytes_, slot.block);
  add_task(*channel, Operation::recv, slot).peer = neighbour(place_.stage + (forward ? -1 : 1));
  operand(Role::destination, buffer, false, true);
  (forward ? stream_ : gradient_)[slot.microbatch] = buffer;
  return true;
}

bool Compiler::prefetch(const Slot& slot) {
  if (slot.kind == Slot::Kind::update) {
    const BlockBuffers& b = buffers_.at(slot.block);
    if (b.host_moments < 0) return true;
    const int staging = add_buffer(fmt::format("{}.staged", blocks_[std::size_t(slot.block)].name),
                                   Tier::device, Content::staging, b.host_bytes, slot.block);
    staged_[slot.block] = staging;
    add_task(Channel::h2d, Operation::copy_in, slot);
    operand(Role::source, b.host_moments, true, false);
    operand(Role::destination, staging, false, true);
    return true;
  }
  if (slot.kind != Slot::Kind::backward || !offloads(slot.block)) return true;
  Activations& kept = activations(slot.microbatch, slot.block);
  if (!kept.drained) return false;
  if (kept.on_host.empty()) return true;
  add_task(Channel::h2d, Operation::copy_in, slot);
  const std::vector<int*> tensors = movable(slot.microbatch, slot.block);
  for (std::size_t i = 0; i < kept.on_host.size(); ++i) {
    const Buffer host = program_.buffers[std::size_t(kept.on_host[i])];
    *tensors[i] =
        add_buffer(host.name + ".back", Tier::device, Content::saved, host.bytes, slot.block);
    operand(Role::source, kept.on_host[i], true, false, int(i));
    operand(Role::destination, *tensors[i], false, true, int(i));
  }
  kept.on_host.clear();
  return true;
}

void Compiler::drain(const Slot& slot) {
  if (slot.kind == Slot::Kind::update) {
    const auto staged = staged_.find(slot.block);
    if (staged == staged_.end()) return;
    add_task(Channel::d2h, Operation::copy_out, slot);
    operand(Role::source, staged->second, true, false);
    operand(Role::destination, buffers_.at(slot.block).host_moments, false, true);
    staged_.erase(staged);
    return;
  }
  // What was sent may still be read by the transfer while the next slot computes.
  if (sends_on(slot)) {
    auto& sent = slot.kind == Slot::Kind::forward ? stream_ : gradient_;
    if (const auto found = sent.find(slot.microbatch); found != sent.end()) {
      keep_until_now(found->second);
      sent.erase(found);
    }
  }
  if (slot.kind != Slot::Kind::forward || !offloads(slot.block)) return;
  const auto found = activations_.find({slot.microbatch, slot.block});
  if (found == activations_.end() || found->second.drained) return;
  Activations& kept = found->second;
  kept.drained = true;
  const int moved = num_moved_[recomputes(slot.block) ? 1 : 0];
  if (moved == 0) return;
  add_task(Channel::d2h, Operation::copy_out, slot);
  const std::vector<int*> tensors = movable(slot.microbatch, slot.block);
  for (int i = 0; i < moved; ++i) {
    const Buffer device = program_.buffers[std::size_t(*tensors[std::size_t(i)])];
    const int host =
        add_buffer(device.name + ".host", Tier::host, Content::saved, device.bytes, slot.block);
    kept.on_host.push_back(host);
    operand(Role::source, *tensors[std::size_t(i)], true, false, i);
    operand(Role::destination, host, false, true, i);
  }
}

void Compiler::send_tied_weights(const Slot& slot) {
  add_task(Channel::p2p_forward, Operation::send, slot).peer = neighbour(plan_.num_stages() - 1);
  range(Role::source, buffers_.at(0).weights, table_first_ * weight_bytes_,
        table_elements_ * weight_bytes_, true, false);
}

void Compiler::tp_all_reduce(const Slot& slot, int buffer) {
  if (stage_.tp == 1) return;
  add_task(Channel::collective_tp, Operation::all_reduce, slot).group = Group::tp;
  operand(Role::destination, buffer, true, true);
}

void Compiler::reduce_gradients(const Slot& slot) {
  if (slot.block == 0 && tied_across_stages()) receive_tied_gradients(slot);
  const BlockBuffers& b = buffers_.at(slot.block);
  if (stage_.tp > 1 && b.layout.partial_elements > 0) {
    add_task(Channel::collective_tp, Operation::all_reduce, slot).group = Group::tp;
    range(Role::destination, b.grads, 0, b.layout.partial_elements * model::grad_bytes, true, true);
  }
  if (stage_.dp == 1) return;
  const bool shard = stage_.zero_level >= 1;
  add_task(Channel::collective_dp, shard ? Operation::reduce_scatter : Operation::all_reduce, slot)
      .group = Group::dp;
  operand(Role::destination, b.grads, true, true);
}

void Compiler::receive_tied_gradients(const Slot& slot) {
  const std::int64_t bytes = table_elements_ * model::grad_bytes;
  const int incoming = add_buffer("tied.incoming", Tier::device, Content::staging, bytes, 0);
  add_task(Channel::p2p_backward, Operation::recv, slot).peer = neighbour(plan_.num_stages() - 1);
  operand(Role::destination, incoming, false, true);
  add_task(Channel::compute, Operation::accumulate, slot);
  operand(Role::source, incoming, true, false);
  range(Role::destination, buffers_.at(0).grads, table_first_ * model::grad_bytes, bytes, true,
        true);
}

/// After the last slot: the head's share of a tied gradient goes home, then loss and norm are
/// summed.
}  // namespace brume::schedule
