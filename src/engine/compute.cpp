#include "compute.hpp"

#include <algorithm>
#include <set>

#include "base/error.hpp"
#include "device/device.hpp"
#include "kernels/pointwise.hpp"
#include "kernels/rope.hpp"
#include "model/storage.hpp"

namespace brume::engine {

using kernels::Write;
using schedule::Operation;
using schedule::Role;

template <class Storage>
ComputeOf<Storage>::ComputeOf(const plan::Plan& plan, const model::Config& model, int rank,
                              const Optimizer& optimizer, const Arena& arena)
    : arena_(arena),
      place_(plan::place(plan, rank)),
      state_fields_(model::state_fields(model)),
      state_bytes_(model::optimizer_bytes(model)),
      update_kernels_(optimizer.kernels ? *optimizer.kernels
                                        : kernels::update_kernels(model.optimizer->name)) {
  require(state_fields_.size() <= kernels::most_state_fields, Failure::bug,
          "optimizer '{}' has too many fields of state", model.optimizer->name);
  const plan::Stage& stage = plan.stages[std::size_t(place_.stage)];
  tp_ = stage.tp;
  tp_rank_ = place_.at[model::Axis::tp];
  tokens_ = stage.microbatch * model.seq_len;
  hidden_ = model.hidden_size;
  attended_tp_ = model.attention_size() / stage.tp;
  ffn_tp_ = model.ffn_size / stage.tp;
  const model::Cut rows = model::cut(model.vocab_size, tp_, tp_rank_);
  vocabulary_ = {.first = int(rows.first), .vocab = model.vocab_size};
  rows_ = int(rows.count);
  eps_ = float(model.norm_eps);
  norm_kind_ = model.norm();
  mlp_kind_ = model.mlp();
  factors_ =
      model.precision == model::Precision::fp8 ? kernels::Factors::fp8 : kernels::Factors::stored;
  gain_base_ = model.gain_base();
  embedding_scale_ = model.embedding_scale();
  logits_cap_ = float(model.logits_cap);
  post_norms_ = model.post_norms();
  qk_norm_ = model.qk_norm;
  rotary_dim_ = model.rotary_dim();
  mlp_in_ = {{"mlp.in", 0, model.mlp_in_size() / stage.tp}};
  if (model.rotary())
    for (const auto& [kind, layers] : model::layer_counts(model)) {
      const std::vector<float> table =
          kernels::rope_table(model::rope_frequencies(model, kind), model.seq_len);
      device::Memory& memory =
          rope_[model::segment_kinds(model, model::BlockKind::layer, kind).front()];
      memory = device::Memory(std::int64_t(table.size() * sizeof(float)));
      device::copy_now(memory.data(), table.data(), memory.bytes());
    }
  for (model::SegmentKind kind : model::segment_kinds(model)) {
    SegmentParts& parts = segments_[kind];
    parts.branches = model::branches(model, kind);
    for (const model::Saved& saved : model::segment(model, kind).saved)
      parts.saved.emplace(saved.name, int(parts.saved.size()));
  }
  describe_attention(stage, model);
  describe_blocks(plan, model, optimizer);
}

template <class Storage>
void ComputeOf<Storage>::describe_attention(const plan::Stage& stage, const model::Config& model) {
  const int heads = model.num_heads / stage.tp, keys = model.kv_heads();
  const bool cut = keys % stage.tp == 0;  // else every tensor-parallel rank holds all key heads
  attention_ = {.batch = stage.microbatch,
                .seq_len = model.seq_len,
                .heads = heads,
                .head_dim = model.head_dim(),
                .kv_heads = cut ? keys / stage.tp : keys,
                .group = model.num_heads / keys,
                .first_head = cut ? 0 : tp_rank_ * heads,
                .scale = model.score_scale(),
                .cap = float(model.attention_cap)};
  windowed_ = attention_;
  windowed_.window = model.window;
  const int width = attention_.width();
  if (keys == model.num_heads)
    qkv_ = {{"attention.qkv", 0, width}};
  else
    qkv_ = {{"attention.q", 0, attended_tp_}, {"attention.kv", attended_tp_, width - attended_tp_}};
}

template <class Storage>
void ComputeOf<Storage>::describe_blocks(const plan::Plan& plan, const model::Config& model,
                                         const Optimizer& optimizer) {
  const std::vector<model::Block> all = model::blocks(model);
  std::set<int> here{0};  // a tied head reads its table
  for (int index : plan::stages_beside(plan, place_.stage))
    for (auto [block, last] = plan::block_range(plan, index); block <= last; ++block)
      here.insert(block);
  for (int block : here) {
    BlockPieces& pieces = blocks_[block];
    pieces.block = all[std::size_t(block)];
    pieces.layout = plan::layout(pieces.block, place_);
    for (const model::Parameter& parameter : pieces.block.parameters)
      pieces.rules.push_back(update_rule(optimizer, parameter));
    for (const model::Piece& piece : pieces.layout.pieces) {
      const std::string& name = pieces.block.parameters[std::size_t(piece.parameter)].name;
      pieces.by_suffix[name.substr(pieces.block.name.size() + 1)] = &piece;
    }
  }
}

template <class Storage>
bool ComputeOf<Storage>::has(int block, std::string_view suffix) const {
  return blocks_.at(block).by_suffix.contains(suffix);
}
template <class Storage>
bool ComputeOf<Storage>::trains(int block, std::string_view suffix) const {
  return has(block, suffix) && !blocks_.at(block).parameter(piece(block, suffix)).frozen;
}
template <class Storage>
const model::Piece& ComputeOf<Storage>::piece(int block, std::string_view suffix) const {
  return *blocks_.at(block).by_suffix.find(suffix)->second;
}
template <class Storage>
auto ComputeOf<Storage>::vector(const Storage* flat, int block, std::string_view suffix) const
    -> ConstVector {
  const model::Piece& p = piece(block, suffix);
  return ConstVector(flat + p.first, std::size_t(p.elements));
}
template <class Storage>
auto ComputeOf<Storage>::matrix(const Storage* flat, int block, std::string_view suffix) const
    -> ConstMatrix {
  const model::Piece& p = piece(block, suffix);
  const auto columns = std::size_t(p.shape.back());
  return ConstMatrix(flat + p.first, std::size_t(p.elements) / columns, columns);
}
template <class Storage>
kernels::Vector ComputeOf<Storage>::vector_grads(const Operands& o, std::string_view suffix) const {
  if (!trains(o.block(), suffix)) return {};
  const model::Piece& p = piece(o.block(), suffix);
  return part(o.data(Role::grads) + p.first, p.elements);
}
template <class Storage>
kernels::Matrix ComputeOf<Storage>::matrix_grads(const Operands& o, std::string_view suffix) const {
  if (!trains(o.block(), suffix)) return {};
  const model::Piece& p = piece(o.block(), suffix);
  const int columns = int(p.shape.back());
  return rows(o.data(Role::grads) + p.first, int(p.elements) / columns, columns);
}
template <class Storage>
auto ComputeOf<Storage>::saved(const Operands& o, std::string_view name, int columns) const
    -> Matrix {
  return rows(o.data<Storage>(Role::saved, saved_index(o, name)), tokens_, columns);
}
template <class Storage>
kernels::Vector ComputeOf<Storage>::statistic(const Operands& o, std::string_view name) const {
  const int index = saved_index(o, name);
  return part(o.data(Role::saved, index), o.elements(Role::saved, index));
}

template <class Storage>
void ComputeOf<Storage>::run(const schedule::Program& program, const schedule::Task& task,
                             const StepScalars& step) const {
  using model::SegmentKind;
  const Operands o{program, task, arena_};
  switch (task.operation) {
    case Operation::forward:
    case Operation::recompute:
      if (task.segment == SegmentKind::embedding) return embedding_forward(o);
      if (task.segment == SegmentKind::head) return head_forward(o, step);
      return layer_forward(o);
    case Operation::backward:
      if (task.segment == SegmentKind::embedding) return embedding_backward(o);
      if (task.segment == SegmentKind::head) return head_backward(o);
      return layer_backward(o);
    case Operation::backward_input:
    case Operation::backward_weights: return layer_backward(o);
    case Operation::loss: return loss(o, step);
    case Operation::clear:
      return kernels::fill(0.0f, part(o.data(Role::grads), o.elements(Role::grads)));
    case Operation::accumulate: return accumulate(o);
    case Operation::norm: return norm(o);
    case Operation::optimizer_step:
    case Operation::host_step: return optimizer_step(o, step);
    default: break;
  }
  throw Error(Failure::bug, "'{}' is not a compute task", schedule::label(task));
}

// --- update -------------------------------------------------------------------------------------

namespace {

/// Updates of a parameter, with the one of this step.
std::int64_t updates_of(const std::string& parameter, const StepScalars& step) {
  const auto missed = step.missed.find(parameter);
  return step.updates - (missed == step.missed.end() ? 0 : missed->second);
}

}  // namespace

template <class Storage>
kernels::UpdatedElements ComputeOf<Storage>::updated(const Elements<Storage>& weights,
                                                     const Elements<>& grads,
                                                     const Elements<std::byte>& state,
                                                     std::int64_t first, std::int64_t end) const {
  kernels::UpdatedElements elements{.count = end - first, .grad = grads.at(first)};
  std::byte* field = state.data;
  for (std::size_t i = 0; i < state_fields_.size(); ++i) {
    elements.state[i] = field + (first - state.first) * state_fields_[i].bytes();
    field += (state.end - state.first) * state_fields_[i].bytes();
  }
  if constexpr (Narrow<Storage>) {
    elements.weight = elements.template field<float>(state_fields_.size() - 1);
    elements.rounded = weights.at(first);
  } else {
    elements.weight = weights.at(first);
  }
  return elements;
}

template <class Storage>
void ComputeOf<Storage>::optimizer_step(const Operands& o, const StepScalars& step) const {
  const BlockPieces& pieces = blocks_.at(o.block());
  const bool on_host = o.task.operation == Operation::host_step;
  const double* const squares = on_host ? &step.squares : o.data<double>(Role::totals) + 1;
  const kernels::UpdateKernel kernel = on_host ? update_kernels_.on_host : update_kernels_.here;
  kernels::Update update = step.update;
  const Elements<Storage> weights = o.part_of_block<Storage>(Role::weights, 0);
  // Gradients and optimizer state are in two places each: what stays on the device, what came from
  // the host.
  for (int i : {0, 1})
    for (int j : {0, 1}) {
      if (!o.task.find(Role::grads, i) || !o.task.find(Role::moments, j)) continue;
      const Elements<> grads = o.part_of_block(Role::grads, i);
      const auto state = o.part_of_block<std::byte>(Role::moments, j, state_bytes_);
      for (const model::Piece& piece : pieces.layout.pieces) {
        const std::int64_t first = std::max({piece.first, grads.first, state.first});
        const std::int64_t end = std::min({piece.first + piece.elements, grads.end, state.end});
        if (first >= end) continue;
        const UpdateRule& rule = pieces.rules[std::size_t(piece.parameter)];
        update.lr = step.update.lr * rule.lr_scale;
        update.weight_decay = rule.weight_decay;
        update.t = double(updates_of(pieces.parameter(piece).name, step));
        kernels::UpdatedElements elements = updated(weights, grads, state, first, end);
        elements.shape = piece.shape;
        kernel(update, squares, elements);
      }
    }
}

/// destination += source, for each pair.
template <class Storage>
void ComputeOf<Storage>::accumulate(const Operands& o) const {
  for (int i = 0; o.task.find(Role::source, i); ++i)
    kernels::add(
        part(static_cast<const float*>(o.data(Role::source, i)), o.elements(Role::source, i)),
        part(o.data(Role::destination, i), o.elements(Role::destination, i)));
}

/// Squares of this rank's part of a block's gradients: each element of the model that is trained is
/// counted on one rank.
template <class Storage>
void ComputeOf<Storage>::norm(const Operands& o) const {
  double* totals = o.data<double>(Role::totals);
  if (o.task.replaces) device::fill(totals, std::byte{0}, 2 * sizeof(double));
  // Tensor-parallel ranks compute the same loss: one of them counts it.
  if (tp_rank_ == 0 && o.task.find(Role::loss))
    device::copy(totals, o.data<double>(Role::loss), sizeof(double));
  if (!o.task.find(Role::grads)) return;
  const BlockPieces& pieces = blocks_.at(o.block());
  const Elements<> grads = o.part_of_block(Role::grads, 0);
  for (const model::Piece& piece : pieces.layout.pieces) {
    const model::Parameter& parameter = pieces.parameter(piece);
    if (!parameter.splits(tp_) && tp_rank_ != 0) continue;
    const std::int64_t first = std::max(piece.first, grads.first);
    const std::int64_t end = std::min(piece.first + piece.elements, grads.end);
    if (first < end) kernels::sum_squares(grads.cut(first, end), Write::accumulate, totals + 1);
  }
}

template class ComputeOf<float>;
template class ComputeOf<kernels::bfloat16>;
template class ComputeOf<kernels::float16>;

std::unique_ptr<Compute> make_compute(const plan::Plan& plan, const model::Config& model, int rank,
                                      const Optimizer& optimizer, const Arena& arena) {
  return model::with_storage(model.precision, [&]<class Storage>() -> std::unique_ptr<Compute> {
    return std::make_unique<ComputeOf<Storage>>(plan, model, rank, optimizer, arena);
  });
}

}  // namespace brume::engine
