/// @file What the compiler knows about a rank, and how it adds buffers, tasks and operands.
#include <fmt/format.h>

#include "compiler.hpp"

namespace brume::schedule {
namespace {

constexpr std::int64_t shard_alignment_elements = 16;

/// How many of a layer's kept tensors offload moves; see model::kept_tensors.
int moved_tensors(const std::vector<model::Kept>& kept, double ratio,
                  const std::map<std::string, double, std::less<>>& values) {
  double total = 0.0;
  for (const model::Kept& tensor : kept) total += tensor.elements.evaluate(values);
  double sum = 0.0;
  int moved = 0;
  for (const model::Kept& tensor : kept) {
    sum += tensor.elements.evaluate(values);
    if (sum > ratio * total + 0.5) break;
    ++moved;
  }
  return moved;
}

}  // namespace

Compiler::Compiler(const plan::Plan& plan, const model::Config& model, int rank,
                   const Options& options)
    : plan_(plan),
      model_(model),
      options_(options),
      place_(plan::place(plan, rank)),
      stage_(plan.stages[std::size_t(place_.stage)]),
      range_(plan::block_range(plan, place_.stage)),
      blocks_(model::blocks(model)),
      weight_bytes_(model::weight_bytes(model.precision)),
      optimizer_bytes_(model::optimizer_bytes(model.precision)) {
  program_.rank = rank;
  const std::map<std::string, double, std::less<>> values{{"b", stage_.microbatch},
                                                          {"tp", stage_.tp}};
  const auto bytes = [&](const model::Expr& elements) {
    return std::int64_t(elements.evaluate(values)) * model::activation_bytes(model.precision);
  };
  for (SegmentKind kind : model::segment_kinds(model)) {
    const model::Segment segment = model::segment(model, kind);
    SegmentBytes& sizes = segments_[kind];
    for (const model::Saved& saved : segment.saved)
      sizes.saved.emplace_back(saved.name, bytes(saved.elements));
    sizes.forward_workspace = bytes(segment.forward_workspace_elements);
    sizes.backward_workspace = bytes(segment.backward_workspace_elements);
  }
  stream_bytes_ = bytes(model::stream_elements(model));
  batch_bytes_ = std::int64_t(stage_.microbatch) * model.seq_len * model::token_bytes;
  make_messages();
  for (int recomputed : {0, 1})
    num_moved_[std::size_t(recomputed)] = moved_tensors(model::kept_tensors(model, recomputed == 1),
                                                        stage_.act_offload_ratio, values);
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

Task& Compiler::add_task(Channel channel, Operation operation, const Slot& slot) {
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

void Compiler::keep_until_now(int buffer) {
  Buffer& b = program_.buffers[std::size_t(buffer)];
  const int now = int(program_.tasks.size()) - 1;
  if (b.first_task < 0) b.first_task = now;
  b.last_task = now;
}

// --- buffers that live from step to step --------------------------------------------------------

void Compiler::make_block_buffers(int block) {
  const model::Block& described = blocks_[std::size_t(block)];
  BlockBuffers& b = buffers_[block];
  b.layout = model::layout(described, stage_.tp, place_.tp_rank, stage_.dp);
  const int shards = stage_.zero_level >= 1 ? stage_.dp : 1;
  b.shard_elements = b.layout.elements / shards;
  b.shard_first = stage_.zero_level >= 1 ? place_.dp_rank * b.shard_elements : 0;
  const std::int64_t host_elements =
      std::int64_t(stage_.optim_offload_ratio * double(b.shard_elements) /
                   shard_alignment_elements) *
      shard_alignment_elements;
  b.host_bytes = host_elements * optimizer_bytes_;
  const std::int64_t device_bytes = (b.shard_elements - host_elements) * optimizer_bytes_;
  const auto make = [&](const char* what, Tier tier, Content content, std::int64_t bytes) {
    if (bytes == 0) return -1;
    return add_buffer(fmt::format("{}.{}", described.name, what), tier, content, bytes, block,
                      true);
  };
  b.weights = make("weights", Tier::device, Content::weights, b.layout.elements * weight_bytes_);
  b.grads = make("grads", Tier::device, Content::grads, b.layout.elements * model::grad_bytes);
  b.moments = make("moments", Tier::device, Content::optimizer, device_bytes);
  b.host_moments = make("host_moments", Tier::host, Content::optimizer, b.host_bytes);
}

void Compiler::make_tied_buffers() {
  if (!model_.tied_head) return;
  const model::Layout layout = model::layout(blocks_[0], stage_.tp, place_.tp_rank, stage_.dp);
  const model::Piece& table = layout.piece(blocks_[0], ".token");
  table_first_ = table.first;
  table_elements_ = table.elements;
  if (!tied_across_stages() || !last_stage()) return;
  tied_weights_ = add_buffer("tied.weights", Tier::device, Content::weights,
                             table_elements_ * weight_bytes_, 0, true);
  tied_grads_ = add_buffer("tied.grads", Tier::device, Content::grads,
                           table_elements_ * model::grad_bytes, 0, true);
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
  for (const model::Kept& tensor : model::kept_tensors(model_, recomputes(block)))
    tensors.push_back(tensor.saved < 0 ? &kept.input.at(tensor.segment)
                                       : &kept.saved.at(tensor.segment)[std::size_t(tensor.saved)]);
  return tensors;
}

}  // namespace brume::schedule
