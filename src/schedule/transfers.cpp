/// @file Transfers of a slot: what it needs before it computes, and what it leaves behind.
#include <fmt/format.h>

#include "compiler.hpp"

namespace brume::schedule {

void Messages::add(const std::vector<plan::Message>& all, int rank) {
  for (const plan::Message& message : all) {
    if (message.source == rank) sends.push_back(message);
    if (message.destination == rank) receives.push_back(message);
  }
}

void Compiler::make_messages() {
  const int stage = place_.stage, rank = program_.rank;
  if (stage > 0) {
    activation_messages_.add(plan::stream_messages(plan_, stage - 1, stage, model_.seq_len), rank);
    gradient_messages_.add(plan::stream_messages(plan_, stage, stage - 1, model_.seq_len), rank);
  }
  if (!last_stage()) {
    activation_messages_.add(plan::stream_messages(plan_, stage, stage + 1, model_.seq_len), rank);
    gradient_messages_.add(plan::stream_messages(plan_, stage + 1, stage, model_.seq_len), rank);
  }
  if (!tied_across_stages()) return;
  tied_weight_messages_.add(plan::tied_weight_messages(plan_, model_.vocab_size), rank);
  tied_grad_messages_.add(plan::tied_gradient_messages(plan_, model_.vocab_size), rank);
}

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
  auto& received = forward ? stream_ : gradient_;
  if (received.contains(slot.microbatch)) return true;  // early
  const int buffer =
      add_buffer(fmt::format("{}#{}", forward ? "stream" : "gradient", slot.microbatch),
                 Tier::device, Content::stream, shard_bytes_, slot.block);
  for (const plan::Message& message : stream_messages(*channel).receives) {
    add_task(*channel, Operation::recv, slot).peer = message.source;
    range(Role::destination, buffer, message.destination_first * token_stream_bytes_,
          message.count * token_stream_bytes_, false, true);
  }
  received[slot.microbatch] = buffer;
  return true;
}

/// After the last slot of a pass, where stages run further ahead: a message has the whole next pass
/// to travel. What the pass before sent has left by now; the next one in this pass's direction may
/// come while the stage is busy with the other direction.
void Compiler::exchange_ahead(const Slot& slot) {
  const bool forward = slot.kind == Slot::Kind::forward && slot.block == range_.last;
  const bool backward = slot.kind == Slot::Kind::backward && slot.block == range_.first;
  if (!runs_ahead() || (!forward && !backward)) return;
  std::erase_if(leaving_streams_, [&](const Sent& sent) {
    const bool earlier = sent.slot.kind != slot.kind || sent.slot.microbatch != slot.microbatch;
    if (earlier) keep_until_now(sent.buffer);
    return earlier;
  });
  if (last_microbatch(slot)) return;
  receive({slot.kind, slot.microbatch + 1, forward ? range_.first : range_.last});
}

void Compiler::send_stream(const Slot& slot) {
  const std::optional<Channel> channel = sends_on(slot);
  if (!channel) return;
  const int buffer = (*channel == Channel::p2p_forward ? stream_ : gradient_).at(slot.microbatch);
  for (const plan::Message& message : stream_messages(*channel).sends) {
    add_task(*channel, Operation::send, slot).peer = message.destination;
    range(Role::source, buffer, message.source_first * token_stream_bytes_,
          message.count * token_stream_bytes_, true, false);
  }
}

/// @return false when something of it is not ready to be fetched: then it must be called again
bool Compiler::prefetch(const Slot& slot) {
  if (slot.kind == Slot::Kind::update) {
    prefetch_update(slot);
    return true;
  }
  prefetch_weights(slot);
  return prefetch_gradients(slot) && prefetch_activations(slot);
}

bool Compiler::prefetch_activations(const Slot& slot) {
  if (slot.kind != Slot::Kind::backward || !offloads(slot.block)) return true;
  Activations& kept = activations(slot.microbatch, slot.block);
  if (!kept.drained) return false;
  if (kept.on_host.empty()) return true;
  read(slot);
  // What comes back before it is written need not be.
  std::erase_if(unwritten_, [&](const Unwritten& u) {
    return u.slot.kind == Slot::Kind::forward && u.slot.microbatch == slot.microbatch &&
           u.slot.block == slot.block;
  });
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
  if (slot.kind == Slot::Kind::update) return drain_update(slot);
  // What was sent may still be read by the transfer while the next slot computes.
  if (sends_on(slot)) {
    auto& sent = slot.kind == Slot::Kind::forward ? stream_ : gradient_;
    if (const auto found = sent.find(slot.microbatch); found != sent.end()) {
      keep_until_now(found->second);
      if (runs_ahead()) leaving_streams_.push_back({slot, found->second});
      sent.erase(found);
    }
  }
  if (slot.kind == Slot::Kind::forward) return drain_activations(slot);
  const auto found = unsettled_.find(slot.block);
  if (found != unsettled_.end() && found->second.slot.microbatch == slot.microbatch)
    settle(slot.block);
}

void Compiler::drain_activations(const Slot& slot) {
  if (!offloads(slot.block)) return;
  const auto found = activations_.find({slot.microbatch, slot.block});
  if (found == activations_.end() || found->second.drained) return;
  Activations& kept = found->second;
  kept.drained = true;
  const int moved = kept_[recomputes(slot.block) ? 1 : 0].moved;
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
  const auto to_disk = kept.on_host.begin() + kept_[recomputes(slot.block) ? 1 : 0].to_disk;
  if (to_disk != kept.on_host.begin())
    unwritten_.push_back({slot, std::vector(kept.on_host.begin(), to_disk)});
}

// --- the disk, which host memory stands before --------------------------------------------------

/// Writes the first `count` of what copies out brought.
void Compiler::write_out(std::size_t count) {
  for (std::size_t n = 0; n < count; ++n) {
    const auto& [slot, staged] = unwritten_[n];
    add_task(Channel::disk, Operation::write, slot);
    for (int i = 0; i < int(staged.size()); ++i) {
      int to = state_.at(slot.block).moments.disk_buffer;
      if (slot.kind != Slot::Kind::update) {
        const Buffer from = program_.buffers[std::size_t(staged[std::size_t(i)])];
        to = add_buffer(from.name + ".disk", Tier::disk, from.content, from.bytes, slot.block);
        activations(slot.microbatch, slot.block).on_disk.push_back(to);
      }
      operand(Role::source, staged[std::size_t(i)], true, false, i);
      operand(Role::destination, to, false, true, i);
    }
  }
  unwritten_.erase(unwritten_.begin(), unwritten_.begin() + std::ptrdiff_t(count));
}

/// Reads what a slot needs of the disk into host memory, unless that was done before.
void Compiler::read(const Slot& slot) {
  if (slot.kind == Slot::Kind::update) {
    const Held& held = state_.at(slot.block).moments;
    if (held.disk.count == 0 || read_moments_.contains(slot.block)) return;
    const int read =
        add_part("read_moments", Tier::host, Content::optimizer, held.disk, slot.block);
    read_moments_[slot.block] = read;
    add_task(Channel::disk, Operation::read, slot);
    operand(Role::source, held.disk_buffer, true, false);
    operand(Role::destination, read, false, true);
    return;
  }
  const auto found = activations_.find({slot.microbatch, slot.block});
  if (slot.kind != Slot::Kind::backward || found == activations_.end()) return;
  Activations& kept = found->second;
  if (kept.on_disk.empty()) return;
  add_task(Channel::disk, Operation::read, slot);
  for (int i = 0; i < int(kept.on_disk.size()); ++i) {
    const int disk = kept.on_disk[std::size_t(i)];
    const Buffer from = program_.buffers[std::size_t(disk)];
    const int host =
        add_buffer(from.name + ".read", Tier::host, from.content, from.bytes, slot.block);
    kept.on_host[std::size_t(i)] = host;
    operand(Role::source, disk, true, false, i);
    operand(Role::destination, host, false, true, i);
  }
  kept.on_disk.clear();
}

void Compiler::send_tied_weights(const Slot& slot) {
  for (const plan::Message& message : tied_weight_messages_.sends) {
    add_task(Channel::p2p_forward, Operation::send, slot).peer = message.destination;
    elements(Role::source, weights(0), table_rows(message.source_first, message.count), true,
             false);
  }
}

/// Before the first activation on this channel, as stage 0 sends it before its first one.
void Compiler::receive_tied_weights() {
  for (const plan::Message& message : tied_weight_messages_.receives) {
    add_task(Channel::p2p_forward, Operation::recv, {Slot::Kind::update, 0, 0}).peer =
        message.source;
    elements(Role::destination, tied_weights_, table_rows(message.destination_first, message.count),
             false, true);
  }
}

void Compiler::send_tied_gradients(const Slot& slot) {
  for (const plan::Message& message : tied_grad_messages_.sends) {
    add_task(Channel::p2p_backward, Operation::send, slot).peer = message.destination;
    elements(Role::source, tied_grads_, table_rows(message.source_first, message.count), true,
             false);
  }
}

void Compiler::receive_tied_gradients(const Slot& slot) {
  for (const plan::Message& message : tied_grad_messages_.receives) {
    const Range rows = table_rows(message.destination_first, message.count);
    const int incoming = add_buffer("tied.incoming", Tier::device, Content::staging,
                                    rows.count * model::grad_bytes, 0);
    add_task(Channel::p2p_backward, Operation::recv, slot).peer = message.source;
    operand(Role::destination, incoming, false, true);
    add_task(Channel::compute, Operation::accumulate, slot);
    operand(Role::source, incoming, true, false);
    elements(Role::destination, grads(0), rows, true, true);
  }
}

}  // namespace brume::schedule
