#include "stores.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace brume::schedule {

void Messages::add(const std::vector<plan::Message>& all, int rank) {
  for (const plan::Message& message : all) {
    if (message.source == rank) sends.push_back(message);
    if (message.destination == rank) receives.push_back(message);
  }
}

Streams::Streams(const Store& store) : Store(store) {
  const plan::Plan& plan = context_.plan;
  const auto between = [&](Lane& lane, int from, int to) {
    lane.messages.add(plan::stream_messages(plan, from, to, context_.model.seq_len), context_.rank);
  };
  const int stage = context_.place.stage;
  if (stage > 0) {
    between(forward_, stage - 1, stage);
    between(backward_, stage, stage - 1);
  }
  if (!context_.last_stage()) {
    between(forward_, stage, stage + 1);
    between(backward_, stage + 1, stage);
  }
}

/// Whether a slot's stream goes to another stage.
bool Streams::sends(const Slot& slot) const {
  const bool forward = slot.kind == Slot::Kind::forward;
  return context_.ends_pass(slot) && (forward ? !context_.last_stage() : context_.place.stage > 0);
}

/// Whether it comes from another stage.
bool Streams::receives(const Slot& slot) const {
  const bool forward = slot.kind == Slot::Kind::forward;
  return context_.begins_pass(slot) &&
         (forward ? context_.place.stage > 0 : !context_.last_stage());
}

void Streams::prefetch(const Slot& slot) {
  Lane& from = lane(slot);
  if (!receives(slot) || from.buffers.contains(slot.microbatch)) return;
  const char* name = slot.kind == Slot::Kind::forward ? "stream" : "gradient";
  const BufferId buffer = build_.add(fmt::format("{}#{}", name, slot.microbatch), Tier::device,
                                     Content::stream, context_.stream_shard_bytes, slot.block);
  for (const plan::Message& message : from.messages.receives)
    build_.receive(slot, from.channel, message.source,
                   tokens(buffer, message.destination_first, message.count));
  put(slot, buffer);
}

bool Streams::prefetch_beside(const Slot& slot, const Slot& next) {
  if (sends(slot) && receives(next) && slot.kind == next.kind) return false;
  prefetch(next);
  return true;
}

BufferId Streams::make(const Slot& slot, std::string_view what) {
  return build_.add_made(slot, what, Content::stream, context_.stream_bytes);
}

BufferId Streams::gather(const Slot& slot, BufferId shard) {
  if (context_.stage.tp == 1) return shard;
  const BufferId whole = make(slot, "whole");
  build_.add(slot, Operation::all_gather,
             {writes(Role::destination, whole), reads(Role::source, shard)}, {.group = Group::tp});
  return whole;
}

BufferId Streams::scatter(const Slot& slot, BufferId part, std::string_view what) {
  if (context_.stage.tp == 1) return part;
  const BufferId shard = build_.add_made(slot, what, Content::stream, context_.stream_shard_bytes);
  build_.add(slot, Operation::reduce_scatter,
             {updates(Role::source, part), writes(Role::destination, shard)}, {.group = Group::tp});
  return shard;
}

/// Sums the parts of a gradient over tensor-parallel ranks. What leaves the stage is a shard; else
/// the next segment needs all tokens and nobody keeps a shard, so it stays in place, and what
/// computes meanwhile finds no bytes to wait for.
void Streams::sum_gradient(const Slot& slot, bool last_segment) {
  if (last_segment && context_.ends_pass(slot)) {
    put(slot, scatter(slot, use(slot), "gradient"));
  } else if (context_.stage.tp > 1) {
    build_.add(slot, Operation::all_reduce, {updates(Role::destination, use(slot))},
               {.group = Group::tp});
  }
}

void Streams::leave(const Slot& slot) {
  if (!sends(slot)) return;
  for (const plan::Message& message : lane(slot).messages.sends)
    build_.send(slot, lane(slot).channel, message.destination,
                tokens(use(slot), message.source_first, message.count));
}

Part Streams::tokens(BufferId buffer, int first, int count) const {
  const std::int64_t bytes =
      std::int64_t(model::activation_bytes(context_.model.precision)) * context_.model.hidden_size;
  return {buffer, first * bytes, count * bytes};
}

void Streams::drain(const Slot& slot) {
  if (!sends(slot)) return;
  const auto found = lane(slot).buffers.extract(slot.microbatch);
  if (!found) return;
  build_.keep_until_now(found.mapped());
  if (context_.runs_ahead()) sent_.push_back({slot, found.mapped()});
}

/// After the last slot of a pass: a message has the whole next pass to travel. What the pass before
/// sent has left by now; the next one in this pass's direction may come while the stage is busy
/// with the other direction.
void Streams::exchange_ahead(const Slot& slot, std::span<const Slot> rest) {
  if (!context_.runs_ahead() || !context_.ends_pass(slot)) return;
  std::erase_if(sent_, [&](const Sent& sent) {
    if (sent.slot == slot) return false;
    build_.keep_until_now(sent.buffer);
    return true;
  });
  const auto next = std::ranges::find_if(rest, [&](const Slot& later) {
    return later.kind == slot.kind && context_.begins_pass(later);
  });
  if (next != rest.end()) prefetch(*next);
}

}  // namespace brume::schedule
