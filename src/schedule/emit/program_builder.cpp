#include "program_builder.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"

namespace brume::schedule {
namespace {

Operand operand(Role role, Part part, bool reads, bool writes, int index) {
  return {role, part.buffer, part.first_byte, part.bytes, reads, writes, index};
}

}  // namespace

Range overlap(Range a, Range b) {
  const std::int64_t first = std::max(a.first, b.first);
  const std::int64_t end = std::min(a.first + a.count, b.first + b.count);
  return {first, std::max<std::int64_t>(0, end - first)};
}

Operand reads(Role role, Part part, int index) { return operand(role, part, true, false, index); }
Operand writes(Role role, Part part, int index) { return operand(role, part, false, true, index); }
Operand updates(Role role, Part part, int index) { return operand(role, part, true, true, index); }

BufferId ProgramBuilder::add(std::string name, Tier tier, Content content, std::int64_t bytes,
                             int block, bool persistent, Range part) {
  program_.buffers.push_back({.name = std::move(name),
                              .tier = tier,
                              .content = content,
                              .bytes = bytes,
                              .persistent = persistent,
                              .block = block,
                              .first_element = part.first,
                              .elements = part.count});
  return BufferId(program_.buffers.size() - 1);
}

BufferId ProgramBuilder::add_part(std::string_view what, Tier tier, Content content, Range part,
                                  int block, bool persistent) {
  return add(fmt::format("{}.{}", context_.block(block).name, what), tier, content,
             bytes(content, part, block), block, persistent, part);
}

BufferId ProgramBuilder::add_made(const Slot& slot, std::string_view what, Content content,
                                  std::int64_t bytes) {
  return add(fmt::format("{}.{}#{}", context_.block(slot.block).name, what, slot.microbatch),
             Tier::device, content, bytes, slot.block);
}

void ProgramBuilder::add(const Slot& slot, Operation operation, std::vector<Operand> operands,
                         const TaskDetails& details) {
  const bool in_update = slot.kind == Slot::Kind::update;
  for (Operand& operand : operands)
    if (operand.bytes == Part::all) operand.bytes = at(operand.buffer).bytes;
  program_.tasks.push_back(
      {.channel = channel(operation, details),
       .operation = operation,
       .phase = in_update && details.phase == Phase::train ? Phase::update : details.phase,
       .segment = details.segment,
       .run = details.run,
       .block = slot.block,
       .microbatch = in_update ? -1 : slot.microbatch,
       .group = details.group,
       .peer = details.peer,
       .backward_pass = slot.kind == Slot::Kind::backward || slot.kind == Slot::Kind::weights,
       .replaces = details.replaces,
       .in_fp32 = details.in_fp32,
       .row_bytes = details.row_bytes,
       .operands = std::move(operands)});
  for (const Operand& operand : program_.tasks.back().operands) keep_until_now(operand.buffer);
}

void ProgramBuilder::send(const Slot& slot, Channel channel, int peer, Part part) {
  add(slot, Operation::send, {reads(Role::source, part)}, {.peer = peer, .channel = channel});
}

void ProgramBuilder::receive(const Slot& slot, Channel channel, int peer, Part part) {
  add(slot, Operation::recv, {writes(Role::destination, part)}, {.peer = peer, .channel = channel});
}

Channel ProgramBuilder::channel(Operation operation, const TaskDetails& details) const {
  const bool in_layers = details.group.contains(model::Axis::tp) ? details.group != model::all_axes
                                                                 : details.group == model::Axis::cp;
  if (!details.group.empty())
    return in_layers || context_.options.one_collective ? Channel::collective_tp
                                                        : Channel::collective_dp;
  switch (operation) {
    case Operation::copy_in: return Channel::h2d;
    case Operation::copy_out: return Channel::d2h;
    case Operation::read:
    case Operation::write: return Channel::disk;
    case Operation::host_step: return Channel::host;
    default: return details.channel;
  }
}

void ProgramBuilder::keep_until_now(BufferId buffer) {
  Buffer& b = at(buffer);
  const int now = int(program_.tasks.size()) - 1;
  if (b.first_task < 0) b.first_task = now;
  b.last_task = now;
}

/// Bytes of an element of weights or gradients.
std::int64_t ProgramBuilder::element_bytes(Content content) const {
  require(content != Content::optimizer, Failure::bug, "elements differ in optimizer state");
  return content == Content::grads ? model::grad_bytes
                                   : model::weight_bytes(context_.model.precision);
}

std::int64_t ProgramBuilder::bytes(Content content, Range part, int block) const {
  if (content != Content::optimizer) return part.count * element_bytes(content);
  return model::state_bytes(context_.model, context_.layout(block), part.first, part.count);
}

Part ProgramBuilder::elements(BufferId buffer, Range part) const {
  const Buffer& b = program_.buffer(buffer);
  const std::int64_t bytes = element_bytes(b.content);
  return {buffer, (part.first - b.first_element) * bytes, part.count * bytes};
}

/// A buffer of optimizer state holds one field after another, each of all its elements. If the two
/// buffers differ in their elements, each field is a pair of its own.
std::vector<Operand> ProgramBuilder::moves(const std::vector<Move>& moves, bool adds) const {
  std::vector<Operand> operands;
  const auto pair = [&](Part source, Part destination) {
    const int index = int(operands.size() / 2);
    operands.push_back(reads(Role::source, source, index));
    operands.push_back(operand(Role::destination, destination, adds, true, index));
  };
  for (const Move& move : moves) {
    const Range part = move.part;
    if (part.count == 0) continue;
    const Buffer &from = program_.buffer(move.source), &to = program_.buffer(move.destination);
    if (from.content != Content::optimizer) {
      pair(elements(move.source, part), elements(move.destination, part));
      continue;
    }
    if (from.elements == to.elements) {
      pair({move.source, 0, from.bytes}, {move.destination, 0, to.bytes});
      continue;
    }
    const auto fields = [&](const Buffer& buffer) {
      return model::state_parts(context_.model, context_.layout(buffer.block), buffer.first_element,
                                buffer.elements);
    };
    const std::vector<model::FieldPart> sources = fields(from), destinations = fields(to);
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const Range both = overlap(overlap(part, {sources[i].first, sources[i].elements}),
                                 {destinations[i].first, destinations[i].elements});
      if (both.count == 0) continue;
      const auto values = [&](BufferId id, const model::FieldPart& field) {
        return Part{id, field.first_byte + field.field.bytes(both.first - field.first),
                    field.field.bytes(both.count)};
      };
      pair(values(move.source, sources[i]), values(move.destination, destinations[i]));
    }
  }
  return operands;
}

}  // namespace brume::schedule
