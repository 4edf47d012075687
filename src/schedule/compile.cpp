#include "schedule/compile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "schedule/place.hpp"
#include "slots.hpp"

namespace brume::schedule {
namespace {

using model::BlockKind;
using model::SegmentKind;

constexpr std::int64_t fp32_bytes = 4;
constexpr std::int64_t token_bytes = 4;
constexpr std::int64_t shard_alignment_elements = 16;

/// What a segment takes on this rank, in bytes.
struct SegmentBytes {
  std::vector<std::pair<std::string, std::int64_t>> saved;
  std::int64_t forward_workspace;
  std::int64_t backward_workspace;
};

/// Buffers of a block that live from step to step.
struct BlockBuffers {
  model::Layout layout;
  int weights = -1;
  int grads = -1;
  int moments = -1;       ///< part of the optimizer state that stays on the device
  int host_moments = -1;  ///< part that is kept on the host
  std::int64_t host_bytes = 0;
  std::int64_t shard_first =
      0;  ///< this rank's part of the optimizer state [elements of the block]
  std::int64_t shard_elements = 0;
};

/// Buffers one block keeps for the backward of one microbatch; -1: not kept.
struct Activations {
  int input = -1;
  int middle = -1;  ///< of a layer: the MLP's input
  std::map<SegmentKind, std::vector<int>> saved;
  std::vector<int> on_host;  ///< offloaded tensors, in the order of model::kept_tensors
  bool drained = false;      ///< what offload moves is on its way
};

class Compiler {
 public:
  Compiler(const plan::Plan& plan, const model::Config& model, int rank, const Options& options);
  Program compile();

 private:
  // --- building: one buffer, one task, one operand ---
  int add_buffer(std::string name, Tier tier, Content content, std::int64_t bytes, int block,
                 bool persistent = false);
  Task& add_task(Channel channel, Operation operation, const Slot& slot);
  void operand(Role role, int buffer, bool reads, bool writes, int index = 0);
  void range(Role role, int buffer, std::int64_t first_byte, std::int64_t bytes, bool reads,
             bool writes, int index = 0);
  void keep_until_now(int buffer);

  // --- buffers that live from step to step ---
  void make_block_buffers(int block);
  void make_tied_buffers();

  // --- a slot: what it needs first, what it does, what it leaves ---
  bool receive(const Slot& slot);
  bool prefetch(const Slot& slot);
  void compute(const Slot& slot);
  void drain(const Slot& slot);
  std::optional<Channel> sends_on(const Slot& slot) const;
  std::optional<Channel> receives_on(const Slot& slot) const;

  void update(const Slot& slot);
  void forward(const Slot& slot);
  void backward(const Slot& slot);
  void run_forward(const Slot& slot, SegmentKind kind, Operation operation, int input, int output,
                   std::vector<int>& saved);
  void run_backward(const Slot& slot, SegmentKind kind, int input, const std::vector<int>& saved);
  void tp_all_reduce(const Slot& slot, int buffer);
  void reduce_gradients(const Slot& slot);
  void clear_gradients(const Slot& slot);
  void finish();

  void table_operand(Role role, bool reads, bool writes);
  void send_tied_weights(const Slot& slot);
  void receive_tied_gradients(const Slot& slot);

  bool is_layer(int block) const { return blocks_[std::size_t(block)].kind == BlockKind::layer; }
  bool is_head(int block) const { return blocks_[std::size_t(block)].kind == BlockKind::head; }
  bool recomputes(int block) const;
  bool offloads(int block) const;
  bool last_stage() const { return place_.stage == plan_.num_stages() - 1; }
  bool tied_across_stages() const { return model_.tied_head && plan_.num_stages() > 1; }
  int neighbour(int stage) const {
    return plan::rank_of(plan_, stage, place_.dp_rank, place_.tp_rank);
  }
  Activations& activations(int microbatch, int block) { return activations_[{microbatch, block}]; }
  /// Buffers of the tensors that offload moves for a block, in order; may be assigned.
  std::vector<int*> movable(int microbatch, int block);

  const plan::Plan& plan_;
  const model::Config& model_;
  const Options& options_;
  plan::Place place_;
  const plan::Stage& stage_;
  plan::BlockRange range_;
  std::vector<model::Block> blocks_;
  std::map<SegmentKind, SegmentBytes> segments_;
  std::int64_t stream_bytes_ = 0;
  std::int64_t batch_bytes_ = 0;  ///< tokens of a microbatch
  std::array<int, 2>
      num_moved_{};  ///< tensors that offload moves: of a full, of a recomputed layer

  Program program_;
  std::map<int, BlockBuffers> buffers_;
  int inputs_ = -1, targets_ = -1, loss_ = -1, totals_ = -1;
  int tied_weights_ = -1, tied_grads_ = -1;
  std::int64_t table_first_byte_ = 0, table_bytes_ = 0;  ///< token table within its flat block
  std::map<std::pair<int, int>, Activations> activations_;
  std::map<int, int> stream_;    ///< by microbatch: output of the last block that ran
  std::map<int, int> gradient_;  ///< by microbatch: gradient of the stream
  std::map<int, int> staged_;    ///< by block: optimizer state on its way
};

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

Compiler::Compiler(const plan::Plan& plan, const model::Config& model, int rank,
                   const Options& options)
    : plan_(plan),
      model_(model),
      options_(options),
      place_(plan::place(plan, rank)),
      stage_(plan.stages[std::size_t(place_.stage)]),
      range_(plan::block_range(plan, place_.stage)),
      blocks_(model::blocks(model)) {
  program_.rank = rank;
  const std::map<std::string, double, std::less<>> values{{"b", stage_.microbatch},
                                                          {"tp", stage_.tp}};
  const auto bytes = [&](const model::Expr& elements) {
    return std::int64_t(elements.evaluate(values)) * fp32_bytes;
  };
  for (SegmentKind kind :
       {SegmentKind::embedding, SegmentKind::attention, SegmentKind::mlp, SegmentKind::head}) {
    const model::Segment segment = model::segment(model, kind);
    SegmentBytes& sizes = segments_[kind];
    for (const model::Saved& saved : segment.saved)
      sizes.saved.emplace_back(saved.name, bytes(saved.elements));
    sizes.forward_workspace = bytes(segment.forward_workspace_elements);
    sizes.backward_workspace = bytes(segment.backward_workspace_elements);
  }
  stream_bytes_ = bytes(model::stream_elements(model));
  batch_bytes_ = std::int64_t(stage_.microbatch) * model.seq_len * token_bytes;
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
  b.host_bytes = 2 * host_elements * fp32_bytes;
  const std::int64_t device_bytes = 2 * (b.shard_elements - host_elements) * fp32_bytes;
  const auto make = [&](const char* what, Tier tier, Content content, std::int64_t bytes) {
    if (bytes == 0) return -1;
    return add_buffer(fmt::format("{}.{}", described.name, what), tier, content, bytes, block,
                      true);
  };
  b.weights = make("weights", Tier::device, Content::weights, b.layout.elements * fp32_bytes);
  b.grads = make("grads", Tier::device, Content::grads, b.layout.elements * fp32_bytes);
  b.moments = make("moments", Tier::device, Content::optimizer, device_bytes);
  b.host_moments = make("host_moments", Tier::host, Content::optimizer, b.host_bytes);
}

void Compiler::make_tied_buffers() {
  if (!model_.tied_head) return;
  const model::Layout layout = model::layout(blocks_[0], stage_.tp, place_.tp_rank, stage_.dp);
  const model::Piece& table = layout.piece(blocks_[0], ".token");
  table_first_byte_ = table.first * fp32_bytes;
  table_bytes_ = table.elements * fp32_bytes;
  if (!tied_across_stages() || !last_stage()) return;
  tied_weights_ = add_buffer("tied.weights", Tier::device, Content::weights, table_bytes_, 0, true);
  tied_grads_ = add_buffer("tied.grads", Tier::device, Content::grads, table_bytes_, 0, true);
}

// --- the iteration ------------------------------------------------------------------------------

Program Compiler::compile() {
  for (int block = range_.first; block <= range_.last; ++block) make_block_buffers(block);
  make_tied_buffers();
  const std::int64_t all_batches = batch_bytes_ * plan_.microbatches;
  if (place_.stage == 0)
    inputs_ = add_buffer("inputs", Tier::device, Content::batch, all_batches, -1, true);
  if (last_stage()) {
    targets_ = add_buffer("targets", Tier::device, Content::batch, all_batches, -1, true);
    loss_ = add_buffer("loss", Tier::device, Content::totals, sizeof(double), -1, true);
  }
  totals_ = add_buffer("totals", Tier::device, Content::totals, 2 * sizeof(double), -1, true);

  const std::vector<Slot> order = slots(plan_, place_.stage, options_.mode);
  if (tied_weights_ >= 0 && options_.mode == Mode::train) {
    // Before the first activation on this channel, as stage 0 sends it before its first one.
    add_task(Channel::p2p_forward, Operation::recv, {Slot::Kind::update, 0, 0}).peer = neighbour(0);
    operand(Role::destination, tied_weights_, false, true);
  }
  const auto at = [&](std::size_t i) -> const Slot& { return order[i]; };
  receive(at(0));
  prefetch(at(0));
  for (std::size_t i = 0; i < order.size(); ++i) {
    const bool has_next = i + 1 < order.size();
    // A send must not stand behind the next receive on its channel: the peer may need it first.
    const bool ahead = has_next && options_.overlap;
    const bool received = ahead &&
                          !(sends_on(at(i)) && sends_on(at(i)) == receives_on(at(i + 1))) &&
                          receive(at(i + 1));
    const bool fetched = ahead && prefetch(at(i + 1));
    compute(at(i));
    if (options_.overlap && i > 0) drain(at(i - 1));
    if (!options_.overlap || !has_next || !fetched) drain(at(i));
    if (has_next && !received) receive(at(i + 1));
    if (has_next && !fetched) prefetch(at(i + 1));
  }
  finish();
  return std::move(program_);
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

void Compiler::compute(const Slot& slot) {
  switch (slot.kind) {
    case Slot::Kind::update:
      return update(slot);
    case Slot::Kind::forward:
      return forward(slot);
    case Slot::Kind::backward:
      return backward(slot);
  }
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

// --- update -------------------------------------------------------------------------------------

void Compiler::update(const Slot& slot) {
  const BlockBuffers& b = buffers_.at(slot.block);
  const std::int64_t first = b.shard_first * fp32_bytes, bytes = b.shard_elements * fp32_bytes;
  add_task(Channel::compute, Operation::optimizer_step, slot);
  range(Role::weights, b.weights, first, bytes, true, true);
  range(Role::grads, b.grads, first, bytes, true, false);
  if (b.moments >= 0) operand(Role::moments, b.moments, true, true);
  if (b.host_moments >= 0) operand(Role::staged, staged_.at(slot.block), true, true);
  operand(Role::totals, totals_, true, false);
  if (stage_.zero_level >= 1 && stage_.dp > 1) {
    add_task(Channel::collective_dp, Operation::all_gather, slot).group = Group::dp;
    operand(Role::destination, b.weights, true, true);
  }
  if (slot.block == 0 && tied_across_stages()) send_tied_weights(slot);
}

void Compiler::send_tied_weights(const Slot& slot) {
  add_task(Channel::p2p_forward, Operation::send, slot).peer = neighbour(plan_.num_stages() - 1);
  range(Role::source, buffers_.at(0).weights, table_first_byte_, table_bytes_, true, false);
}

// --- forward ------------------------------------------------------------------------------------

void Compiler::forward(const Slot& slot) {
  const int m = slot.microbatch;
  Activations& kept = activations(m, slot.block);
  kept.drained = !offloads(slot.block);
  const auto new_stream = [&](const char* what) {
    return add_buffer(fmt::format("{}.{}#{}", blocks_[std::size_t(slot.block)].name, what, m),
                      Tier::device, Content::stream, stream_bytes_, slot.block);
  };
  if (!is_layer(slot.block) && !is_head(slot.block)) {
    const int output = new_stream("output");
    run_forward(slot, SegmentKind::embedding, Operation::forward, inputs_, output,
                kept.saved[SegmentKind::embedding]);
    stream_[m] = output;
  } else if (is_head(slot.block)) {
    kept.input = stream_.at(m);
    stream_.erase(m);
    run_forward(slot, SegmentKind::head, Operation::forward, kept.input, -1,
                kept.saved[SegmentKind::head]);
  } else {
    kept.input = stream_.at(m);
    kept.middle = new_stream("middle");
    run_forward(slot, SegmentKind::attention, Operation::forward, kept.input, kept.middle,
                kept.saved[SegmentKind::attention]);
    stream_[m] = new_stream("output");
    run_forward(slot, SegmentKind::mlp, Operation::forward, kept.middle, stream_.at(m),
                kept.saved[SegmentKind::mlp]);
    if (recomputes(slot.block)) {
      kept.middle = -1;
      kept.saved.clear();
    }
  }
  if (sends_on(slot)) {
    add_task(Channel::p2p_forward, Operation::send, slot).peer = neighbour(place_.stage + 1);
    operand(Role::source, stream_.at(m), true, false);
  }
}

void Compiler::run_forward(const Slot& slot, SegmentKind kind, Operation operation, int input,
                           int output, std::vector<int>& saved) {
  const SegmentBytes& sizes = segments_.at(kind);
  const std::int64_t batch_first = slot.microbatch * batch_bytes_;
  saved.clear();
  for (const auto& [name, bytes] : sizes.saved)
    saved.push_back(add_buffer(
        fmt::format("{}.{}#{}", blocks_[std::size_t(slot.block)].name, name, slot.microbatch),
        Tier::device, Content::saved, bytes, slot.block));
  const int workspace = sizes.forward_workspace == 0
                            ? -1
                            : add_buffer("workspace", Tier::device, Content::workspace,
                                         sizes.forward_workspace, slot.block);

  add_task(Channel::compute, operation, slot).segment = kind;
  if (kind == SegmentKind::embedding)
    range(Role::input, input, batch_first, batch_bytes_, true, false);
  else
    operand(Role::input, input, true, false);
  operand(Role::weights, buffers_.at(slot.block).weights, true, false);
  for (std::size_t i = 0; i < saved.size(); ++i)
    operand(Role::saved, saved[i], false, true, int(i));
  if (workspace >= 0) operand(Role::workspace, workspace, false, true);
  if (output >= 0) operand(Role::output, output, false, true);
  if (kind == SegmentKind::head) {
    if (model_.tied_head) table_operand(Role::weights, true, false);
    range(Role::targets, targets_, batch_first, batch_bytes_, true, false);
    program_.tasks.back().replaces = slot.microbatch == 0;
    operand(Role::loss, loss_, slot.microbatch > 0, true);
  }
  if (output >= 0 && kind != SegmentKind::embedding) tp_all_reduce(slot, output);
}

void Compiler::table_operand(Role role, bool reads, bool writes) {
  const bool weights = role == Role::weights;
  if (tied_across_stages())
    return operand(role, weights ? tied_weights_ : tied_grads_, reads, writes, 1);
  const BlockBuffers& embedding = buffers_.at(0);
  range(role, weights ? embedding.weights : embedding.grads, table_first_byte_, table_bytes_, reads,
        writes, 1);
}

void Compiler::tp_all_reduce(const Slot& slot, int buffer) {
  if (stage_.tp == 1) return;
  add_task(Channel::collective_tp, Operation::all_reduce, slot).group = Group::tp;
  operand(Role::destination, buffer, true, true);
}

// --- backward -----------------------------------------------------------------------------------

void Compiler::backward(const Slot& slot) {
  const int m = slot.microbatch;
  Activations& kept = activations(m, slot.block);
  clear_gradients(slot);
  if (is_head(slot.block)) {
    gradient_[m] = add_buffer(fmt::format("gradient#{}", m), Tier::device, Content::stream,
                              stream_bytes_, slot.block);
    run_backward(slot, SegmentKind::head, kept.input, kept.saved[SegmentKind::head]);
  } else if (is_layer(slot.block)) {
    if (recomputes(slot.block)) {
      kept.middle =
          add_buffer(fmt::format("{}.middle#{}", blocks_[std::size_t(slot.block)].name, m),
                     Tier::device, Content::stream, stream_bytes_, slot.block);
      run_forward(slot, SegmentKind::attention, Operation::recompute, kept.input, kept.middle,
                  kept.saved[SegmentKind::attention]);
      run_forward(slot, SegmentKind::mlp, Operation::recompute, kept.middle, -1,
                  kept.saved[SegmentKind::mlp]);
    }
    run_backward(slot, SegmentKind::mlp, kept.middle, kept.saved[SegmentKind::mlp]);
    run_backward(slot, SegmentKind::attention, kept.input, kept.saved[SegmentKind::attention]);
  } else {
    run_backward(slot, SegmentKind::embedding, inputs_, kept.saved[SegmentKind::embedding]);
  }
  if (sends_on(slot)) {
    add_task(Channel::p2p_backward, Operation::send, slot).peer = neighbour(place_.stage - 1);
    operand(Role::source, gradient_.at(m), true, false);
  }
  if (m == plan_.microbatches - 1) reduce_gradients(slot);
  activations_.erase({m, slot.block});
}

/// The token and position tables get their gradients by adding rows, so they start from zero.
void Compiler::clear_gradients(const Slot& slot) {
  if (slot.microbatch != 0) return;
  const bool same_stage = model_.tied_head && !tied_across_stages();
  if (is_head(slot.block) && tied_across_stages()) {
    add_task(Channel::compute, Operation::clear, slot);
    operand(Role::grads, tied_grads_, false, true);
  }
  const bool first_touch = same_stage ? is_head(slot.block) : slot.block == 0;
  if (!first_touch) return;
  add_task(Channel::compute, Operation::clear, {slot.kind, slot.microbatch, 0});
  operand(Role::grads, buffers_.at(0).grads, false, true);
}

void Compiler::run_backward(const Slot& slot, SegmentKind kind, int input,
                            const std::vector<int>& saved) {
  const SegmentBytes& sizes = segments_.at(kind);
  const int workspace = sizes.backward_workspace == 0
                            ? -1
                            : add_buffer("workspace", Tier::device, Content::workspace,
                                         sizes.backward_workspace, slot.block);
  const int gradient = gradient_.at(slot.microbatch);
  const BlockBuffers& b = buffers_.at(slot.block);
  const bool first = slot.microbatch == 0;

  Task& task = add_task(Channel::compute, Operation::backward, slot);
  task.segment = kind;
  task.replaces = first;
  if (kind == SegmentKind::embedding)
    range(Role::input, input, slot.microbatch * batch_bytes_, batch_bytes_, true, false);
  else
    operand(Role::input, input, true, false);
  operand(Role::weights, b.weights, true, false);
  operand(Role::grads, b.grads, !first || kind == SegmentKind::embedding, true);
  for (std::size_t i = 0; i < saved.size(); ++i)
    operand(Role::saved, saved[i], true, false, int(i));
  if (workspace >= 0) operand(Role::workspace, workspace, false, true);
  operand(Role::gradient, gradient, kind != SegmentKind::head, kind != SegmentKind::embedding);
  if (kind == SegmentKind::head && model_.tied_head) {
    table_operand(Role::weights, true, false);
    table_operand(Role::grads, true, true);
  }
  if (kind == SegmentKind::attention || kind == SegmentKind::mlp) tp_all_reduce(slot, gradient);
}

/// After the last microbatch a block's gradients are complete on this rank: sum them over the
/// others.
void Compiler::reduce_gradients(const Slot& slot) {
  if (slot.block == 0 && tied_across_stages()) receive_tied_gradients(slot);
  const BlockBuffers& b = buffers_.at(slot.block);
  if (stage_.tp > 1 && b.layout.partial_elements > 0) {
    add_task(Channel::collective_tp, Operation::all_reduce, slot).group = Group::tp;
    range(Role::destination, b.grads, 0, b.layout.partial_elements * fp32_bytes, true, true);
  }
  if (stage_.dp == 1) return;
  const bool shard = stage_.zero_level >= 1;
  add_task(Channel::collective_dp, shard ? Operation::reduce_scatter : Operation::all_reduce, slot)
      .group = Group::dp;
  operand(Role::destination, b.grads, true, true);
}

void Compiler::receive_tied_gradients(const Slot& slot) {
  const int incoming = add_buffer("tied.incoming", Tier::device, Content::staging, table_bytes_, 0);
  add_task(Channel::p2p_backward, Operation::recv, slot).peer = neighbour(plan_.num_stages() - 1);
  operand(Role::destination, incoming, false, true);
  add_task(Channel::compute, Operation::accumulate, slot);
  operand(Role::source, incoming, true, false);
  range(Role::destination, buffers_.at(0).grads, table_first_byte_, table_bytes_, true, true);
}

/// After the last slot: the head's share of a tied gradient goes home, then loss and norm are
/// summed.
void Compiler::finish() {
  const bool train = options_.mode == Mode::train;
  const Slot last{train ? Slot::Kind::backward : Slot::Kind::forward, plan_.microbatches - 1, -1};
  if (train && tied_grads_ >= 0) {
    add_task(Channel::p2p_backward, Operation::send, last).peer = neighbour(0);
    operand(Role::source, tied_grads_, true, false);
  }
  add_task(Channel::compute, Operation::norm, last);
  if (loss_ >= 0) operand(Role::loss, loss_, true, false);
  for (const auto& [block, b] : buffers_) {
    if (!train) break;
    // Each data-parallel rank counts its part of the block, whether or not the rest is here too.
    const std::int64_t part_bytes = b.layout.elements / stage_.dp * fp32_bytes;
    range(Role::grads, b.grads, place_.dp_rank * part_bytes, part_bytes, true, false, block);
  }
  operand(Role::totals, totals_, false, true);
  if (plan_.devices() == 1) return;
  add_task(Channel::collective_dp, Operation::all_reduce, last).group = Group::world;
  operand(Role::totals, totals_, true, true);
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
  for (const model::Kept& tensor : model::kept_tensors(model_, recomputes(block))) {
    const bool attention = tensor.segment == SegmentKind::attention;
    tensors.push_back(tensor.saved < 0 ? (attention ? &kept.input : &kept.middle)
                                       : &kept.saved.at(tensor.segment)[std::size_t(tensor.saved)]);
  }
  return tensors;
}

}  // namespace

Program compile(const plan::Plan& plan, const model::Config& model, int rank,
                const Options& options) {
  Program program = Compiler(plan, model, rank, options).compile();
  place(program);
  link(program, options.overlap);
  return program;
}

}  // namespace brume::schedule
