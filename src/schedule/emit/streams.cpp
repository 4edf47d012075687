#include "stores.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace brume::schedule {

void Messages::add(const std::vector<plan::Message>& all, int rank) {
  for (const plan::Message& message : all) {
    if (message.source == rank) sends.push_back(message);
    if (message.destination == rank) receives.push_back(message);
  }
}

Streams::Streams(const Store& store) : Store(store) {
  const plan::Plan& plan = context_.plan;
  for (int stage : context_.stages) {
    const auto between = [&](Lane& lane, int from, int to) {
      lane.messages[stage].add(
          plan::stream_messages(plan, from, to, context_.model.computed_tokens()), context_.rank);
    };
    if (stage > 0) {
      between(forward_, stage - 1, stage);
      between(backward_, stage, stage - 1);
    }
    if (stage + 1 < plan.num_stages()) {
      between(forward_, stage, stage + 1);
      between(backward_, stage + 1, stage);
    }
  }
  if (plan.order.needs_timetable(context_.runs_ahead()))
    exchanges_ = exchanges(plan, context_.place.stage, context_.options);
}

void Streams::prefetch(const Slot& slot) {
  if (!exchanges_.empty()) {
    if (exchanged_ == 0) exchange();
  } else if (context_.receives(slot) && !lane(slot).buffers.contains(key(slot))) {
    receive(slot);
  }
}

void Streams::receive(const Slot& slot) {
  Lane& from = lane(slot);
  const char* name = slot.kind == Slot::Kind::forward ? "stream" : "gradient";
  const BufferId buffer = build_.add(fmt::format("{}#{}", name, slot.microbatch), Tier::device,
                                     Content::stream, context_.stream_shard_bytes, slot.block);
  for (const plan::Message& message : messages(slot).receives)
    build_.receive(slot, from.channel, message.source,
                   tokens(buffer, message.destination_first, message.count));
  put(slot, buffer);
}

bool Streams::prefetch_beside(const Slot& slot, const Slot& next) {
  if (context_.sends(slot) && context_.receives(next) && slot.kind == next.kind) return false;
  prefetch(next);
  return true;
}

BufferId Streams::make(const Slot& slot, SegmentKind kind, std::string_view what) {
  return build_.add_made(slot, what, Content::stream, context_.segments.at(kind).stream_bytes);
}

BufferId Streams::make_shard(const Slot& slot, std::string_view what) {
  return build_.add_made(slot, what, Content::stream, context_.stream_shard_bytes);
}

BufferId Streams::gather(const Slot& slot, SegmentKind kind, BufferId shard) {
  if (context_.sum_ranks(kind) == 1) return shard;
  const BufferId whole = make(slot, kind, "whole");
  build_.add(slot, Operation::all_gather,
             {writes(Role::destination, whole), reads(Role::source, shard)},
             {.group = context_.segments.at(kind).sum_axes});
  return whole;
}

BufferId Streams::scatter(const Slot& slot, SegmentKind kind, BufferId part,
                          std::string_view what) {
  if (context_.sum_ranks(kind) == 1) return part;
  const BufferId shard = make_shard(slot, what);
  build_.add(slot, Operation::reduce_scatter,
             {updates(Role::source, part), writes(Role::destination, shard)},
             {.group = context_.segments.at(kind).sum_axes});
  return shard;
}

void Streams::leave(const Slot& slot) {
  if (!exchanges_.empty()) {
    if (context_.ends_pass(slot)) exchange();
  } else if (context_.sends(slot)) {
    send(slot);
  }
}

/// Of several stages: what is sent and received after a pass, in the one order. What the pass
/// before sent has left by now.
void Streams::exchange() {
  const std::vector<Sent> before = std::exchange(sent_, {});
  for (const auto& [slot, sends] : exchanges_[exchanged_++]) {
    if (!sends) {
      receive(slot);
      continue;
    }
    send(slot);
    sent_.push_back({slot, take(slot)});
  }
  for (const Sent& sent : before) build_.keep_until_now(sent.buffer);
}

void Streams::send(const Slot& slot) {
  for (const plan::Message& message : messages(slot).sends)
    build_.send(slot, lane(slot).channel, message.destination,
                tokens(use(slot), message.source_first, message.count));
}

Part Streams::tokens(BufferId buffer, int first, int count) const {
  const std::int64_t bytes =
      std::int64_t(model::activation_bytes(context_.model.precision)) * context_.model.hidden_size;
  return {buffer, first * bytes, count * bytes};
}

void Streams::drain(const Slot& slot) {
  if (!context_.sends(slot) || !exchanges_.empty()) return;
  const auto found = lane(slot).buffers.extract(key(slot));
  if (!found) return;
  build_.keep_until_now(found.mapped());
  if (context_.runs_ahead()) sent_.push_back({slot, found.mapped()});
}

/// After the last slot of a pass: a message has the whole next pass to travel. What the pass before
/// sent has left by now; the next one in this pass's direction may come while the stage is busy
/// with the other direction.
void Streams::exchange_ahead(const Slot& slot, std::span<const Slot> rest) {
  if (!exchanges_.empty() || !context_.runs_ahead() || !context_.ends_pass(slot)) return;
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
