/// @file What the compiler knows about a rank, and how it adds buffers, tasks and operands.
#include <fmt/format.h>

#include <algorithm>

#include "compiler.hpp"

namespace brume::schedule {

Range overlap(Range a, Range b) {
  const std::int64_t first = std::max(a.first, b.first);
  const std::int64_t end = std::min(a.first + a.count, b.first + b.count);
  return {first, std::max<std::int64_t>(0, end - first)};
}

Compiler::Compiler(const plan::Plan& plan, const model::Config& model, int rank,
                   const Options& options)
    : plan_(plan),
      model_(model),
      options_(options),
      place_(plan::place(plan, rank)),
      stage_(plan.stages[std::size_t(place_.stage)]),
      range_(plan::block_range(plan, place_.stage)),
      sharded_(plan::sharded(stage_)),
      blocks_(model::blocks(model)),
      weight_bytes_(model::weight_bytes(model.precision)),
      optimizer_bytes_(model::optimizer_bytes(model.precision)) {
  program_.rank = rank;
  const std::map<std::string, double, std::less<>> values{{"b", stage_.microbatch},
                                                          {"tp", stage_.tp}};
  const auto bytes = [&](const model::Expr& all) { return std::int64_t(all.evaluate(values)); };
  for (SegmentKind kind : model::segment_kinds(model)) {
    const model::Segment segment = model::segment(model, kind);
    SegmentBuffers& sizes = segments_[kind];
    for (const model::Saved& saved : segment.saved)
      sizes.saved.emplace_back(saved.name, bytes(saved.bytes()));
    sizes.forward_workspace = bytes(segment.forward_workspace_bytes());
    sizes.backward_workspace = bytes(segment.backward_workspace_bytes());
  }
  stream_bytes_ = bytes(model::stream_bytes(model));
  token_stream_bytes_ = std::int64_t(model::activation_bytes(model.precision)) * model.hidden_size;
  shard_bytes_ = bytes(model::stream_shard_bytes(model));
  const model::HeadPieces pieces = model::head_pieces(model);
  piece_tokens_ = std::int64_t(pieces.tokens.evaluate(values));
  num_pieces_ = int(pieces.count.evaluate(values));
  batch_bytes_ = std::int64_t(stage_.microbatch) * model.seq_len * model::token_bytes;
  make_messages();
  for (int recomputed : {0, 1}) {
    const std::vector<model::Kept> kept = model::kept_tensors(model, recomputed == 1);
    KeptTensors& tensors = kept_[std::size_t(recomputed)];
    for (const model::Kept& tensor : kept) tensors.order.emplace_back(tensor.segment, tensor.saved);
    const auto moved = [&](double ratio) {
      return plan::moved_tensors(kept, ratio, stage_.microbatch, stage_.tp).count;
    };
    tensors.moved = moved(stage_.act_offload_ratio);
    tensors.to_disk = moved(stage_.act_disk_ratio);
  }
}

// --- building -----------------------------------------------------------------------------------

int Compiler::add_buffer(std::string name, Tier tier, Content content, std::int64_t bytes,
                         int block, bool persistent) {
  program_.buffers.push_back({.name = std::move(name),
                              .tier = tier,
                              .content = content,
                              .bytes = bytes,
                              .persistent = persistent,
                              .block = block});
  return int(program_.buffers.size()) - 1;
}

std::int64_t Compiler::element_bytes(Content content) const {
  if (content == Content::weights) return weight_bytes_;
  return content == Content::grads ? model::grad_bytes : optimizer_bytes_;
}

int Compiler::add_part(const char* what, Tier tier, Content content, Range part, int block,
                       bool persistent) {
  const int id = add_buffer(fmt::format("{}.{}", blocks_[std::size_t(block)].name, what), tier,
                            content, part.count * element_bytes(content), block, persistent);
  program_.buffers[std::size_t(id)].first_element = part.first;
  return id;
}

Task& Compiler::add_task(Channel channel, Operation operation, const Slot& slot) {
  if (channel == Channel::collective_dp && options_.one_collective)
    channel = Channel::collective_tp;
  Task task{.channel = channel, .operation = operation, .operands = {}, .waits = {}};
  task.phase = slot.kind == Slot::Kind::update ? Phase::update : Phase::train;
  task.backward_pass = slot.kind == Slot::Kind::backward;
  task.block = slot.block;
  task.microbatch = slot.kind == Slot::Kind::update ? -1 : slot.microbatch;
  program_.tasks.push_back(std::move(task));
  return program_.tasks.back();
}

void Compiler::operand(Role role, int buffer, bool reads, bool writes, int index) {
  range(role, buffer, 0, program_.buffers[std::size_t(buffer)].bytes, reads, writes, index);
}

void Compiler::range(Role role, int buffer, std::int64_t first_byte, std::int64_t bytes, bool reads,
                     bool writes, int index) {
  program_.tasks.back().operands.push_back({role, buffer, first_byte, bytes, reads, writes, index});
  keep_until_now(buffer);
}

void Compiler::elements(Role role, int buffer, Range part, bool reads, bool writes, int index) {
  const Buffer& b = program_.buffers[std::size_t(buffer)];
  const std::int64_t bytes = element_bytes(b.content);
  range(role, buffer, (part.first - b.first_element) * bytes, part.count * bytes, reads, writes,
        index);
}

void Compiler::pair(int source, int destination, Range part, bool adds) {
  if (part.count == 0) return;
  const int index = int(program_.tasks.back().operands.size() / 2);
  elements(Role::source, source, part, true, false, index);
  elements(Role::destination, destination, part, adds, true, index);
}

void Compiler::pair_moments(int source, int destination, Range part) {
  if (part.count == 0) return;
  constexpr std::int64_t number_bytes = sizeof(float);
  const Buffer from = program_.buffers[std::size_t(source)];
  const Buffer to = program_.buffers[std::size_t(destination)];
  if (from.bytes == to.bytes) return pair(source, destination, part);
  const auto place = [&](const Buffer& buffer, std::int64_t number) {
    const std::int64_t elements = buffer.bytes / optimizer_bytes_;
    return (number * elements + part.first - buffer.first_element) * number_bytes;
  };
  for (std::int64_t number = 0; number < optimizer_bytes_ / number_bytes; ++number) {
    const int index = int(program_.tasks.back().operands.size() / 2);
    const std::int64_t bytes = part.count * number_bytes;
    range(Role::source, source, place(from, number), bytes, true, false, index);
    range(Role::destination, destination, place(to, number), bytes, false, true, index);
  }
}

void Compiler::keep_until_now(int buffer) {
  Buffer& b = program_.buffers[std::size_t(buffer)];
  const int now = int(program_.tasks.size()) - 1;
  if (b.first_task < 0) b.first_task = now;
  b.last_task = now;
}

// --- buffers that live from step to step --------------------------------------------------------

/// Cuts off the last `offloaded` elements of `range`, and of these the last `on_disk`.
Held Compiler::hold(int block, Content content, Range range, double offloaded, double on_disk) {
  const std::int64_t away = std::int64_t(offloaded), last = std::int64_t(on_disk);
  const std::int64_t end = range.first + range.count;
  Held held{.device = {range.first, range.count - away},
            .host = {end - away, away - last},
            .disk = {end - last, last}};
  const bool weights = content == Content::weights, grads = content == Content::grads;
  const char* name = weights ? "weights" : grads ? "grads" : "moments";
  const char* host_name = weights ? "host_weights" : grads ? "host_grads" : "host_moments";
  if (held.device.count > 0)
    held.device_buffer = add_part(name, Tier::device, content, held.device, block, true);
  if (held.host.count > 0)
    held.host_buffer = add_part(host_name, Tier::host, content, held.host, block, true);
  if (held.disk.count > 0)
    held.disk_buffer = add_part("disk_moments", Tier::disk, content, held.disk, block, true);
  return held;
}

void Compiler::make_block_state(int block) {
  BlockState& b = state_[block];
  b.layout = model::layout(blocks_[std::size_t(block)], stage_.tp, place_.tp_rank, stage_.dp);
  b.whole = {0, b.layout.elements};
  const std::int64_t count = b.layout.elements / stage_.dp;
  const Range shard{place_.dp_rank * count, count};
  const plan::KeptState<double> kept =
      plan::kept_state(plan::state_knobs(stage_), double(b.layout.elements));
  const auto range = [&](bool is_sharded) { return is_sharded ? shard : b.whole; };
  b.shard = range(sharded_.optimizer);
  b.weights = hold(block, Content::weights, range(sharded_.weights), kept.host_weights);
  b.grads = hold(block, Content::grads, range(sharded_.grads), kept.host_grads);
  b.moments =
      hold(block, Content::optimizer, b.shard, kept.offloaded_optimizer, kept.disk_optimizer);
  b.weights_staged = kept.weights_staged > 0.0;
  b.grads_staged = kept.grads_staged > 0.0;
}

void Compiler::make_tied_buffers() {
  if (!model_.tied_head) return;
  const model::Layout largest = model::layout(blocks_[0], stage_.tp, 0, stage_.dp);
  const model::Piece& table = largest.piece(blocks_[0], ".token");
  table_ = {table.first, table.elements};
  if (!tied_across_stages() || !last_stage()) return;
  tied_weights_ = add_buffer("tied.weights", Tier::device, Content::weights,
                             table_.count * weight_bytes_, 0, true);
  tied_grads_ = add_buffer("tied.grads", Tier::device, Content::grads,
                           table_.count * model::grad_bytes, 0, true);
  for (int id : {tied_weights_, tied_grads_})
    program_.buffers[std::size_t(id)].first_element = table_.first;
}

// --- which blocks save memory how ---------------------------------------------------------------

bool Compiler::recomputes(int block) const {
  if (!is_layer(block)) return false;
  const int layer = blocks_[std::size_t(block)].layer;
  return layer >= stage_.first_layer + stage_.layers - stage_.ckpt_layers;
}

bool Compiler::offloads(int block) const {
  if (!is_layer(block) || stage_.act_offload_ratio == 0.0 || options_.mode == Mode::evaluate)
    return false;
  // The last layer of the last stage is needed again at once: moving it out and back saves nothing.
  return !(last_stage() && block == range_.last - 1);
}

std::vector<int*> Compiler::movable(int microbatch, int block) {
  Activations& kept = activations(microbatch, block);
  std::vector<int*> tensors;
  for (const auto& [segment, saved] : kept_[recomputes(block) ? 1 : 0].order)
    tensors.push_back(saved < 0 ? &kept.input.at(segment)
                                : &kept.saved.at(segment)[std::size_t(saved)]);
  return tensors;
}

}  // namespace brume::schedule
