#include "compute.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "kernels/pointwise.hpp"
#include "kernels/rope.hpp"

namespace brume::engine {

using kernels::ConstMatrix;
using kernels::ConstVector;
using kernels::Matrix;
using kernels::Vector;
using schedule::Operation;
using schedule::Role;

namespace {

/// The overlap of two ranges of elements.
struct Overlap {
  std::int64_t first, elements;
};
Overlap overlap(std::int64_t first_a, std::int64_t elements_a, std::int64_t first_b,
                std::int64_t elements_b) {
  const std::int64_t first = std::max(first_a, first_b);
  return {first,
          std::max<std::int64_t>(0, std::min(first_a + elements_a, first_b + elements_b) - first)};
}

}  // namespace

Compute::Compute(const plan::Plan& plan, const model::Config& model, int rank, const Arena& arena)
    : arena_(arena), place_(plan::place(plan, rank)) {
  const plan::Stage& stage = plan.stages[std::size_t(place_.stage)];
  tp_ = stage.tp;
  tokens_ = stage.microbatch * model.seq_len;
  hidden_ = model.hidden_size;
  attended_tp_ = model.attention_size() / stage.tp;
  ffn_tp_ = model.ffn_size / stage.tp;
  vocab_ = model.vocab_size;
  eps_ = float(model.norm_eps);
  norm_kind_ = model.norm();
  mlp_kind_ = model.mlp();
  mlp_in_ = {{"mlp.in", 0, model.mlp_in_size() / stage.tp}};
  if (model.rotary()) rope_ = kernels::rope_table(model::rope_frequencies(model), model.seq_len);
  for (model::SegmentKind kind : model::segment_kinds(model)) {
    SegmentParts& parts = segments_[kind];
    parts.branches = model::branches(model, kind);
    for (const model::Saved& saved : model::segment(model, kind).saved)
      parts.saved.emplace(saved.name, int(parts.saved.size()));
  }
  describe_attention(stage, model);
  describe_blocks(plan, model);
}

void Compute::describe_attention(const plan::Stage& stage, const model::Config& model) {
  const int heads = model.num_heads / stage.tp, keys = model.kv_heads();
  const bool cut = keys % stage.tp == 0;  // else every tensor-parallel rank holds all key heads
  attention_ = {.batch = stage.microbatch,
                .seq_len = model.seq_len,
                .heads = heads,
                .head_dim = model.head_dim(),
                .kv_heads = cut ? keys / stage.tp : keys,
                .group = model.num_heads / keys,
                .first_head = cut ? 0 : place_.tp_rank * heads};
  const int width = attention_.width();
  if (keys == model.num_heads)
    qkv_ = {{"attention.qkv", 0, width}};
  else
    qkv_ = {{"attention.q", 0, attended_tp_}, {"attention.kv", attended_tp_, width - attended_tp_}};
}

void Compute::describe_blocks(const plan::Plan& plan, const model::Config& model) {
  const plan::Stage& stage = plan.stages[std::size_t(place_.stage)];
  const std::vector<model::Block> all = model::blocks(model);
  const auto [first, last] = plan::block_range(plan, place_.stage);
  for (int block = 0; block < int(all.size()); ++block) {
    if ((block < first || block > last) && block != 0)
      continue;  // block 0: a tied head reads its table
    BlockPieces& pieces = blocks_[block];
    pieces.block = all[std::size_t(block)];
    pieces.layout = model::layout(pieces.block, stage.tp, place_.tp_rank, stage.dp);
    for (const model::Piece& piece : pieces.layout.pieces) {
      const std::string& name = pieces.block.parameters[std::size_t(piece.parameter)].name;
      pieces.by_suffix[name.substr(pieces.block.name.size() + 1)] = &piece;
    }
  }
}

bool Compute::has(int block, std::string_view suffix) const {
  return blocks_.at(block).by_suffix.contains(suffix);
}
const model::Piece& Compute::piece(int block, std::string_view suffix) const {
  return *blocks_.at(block).by_suffix.find(suffix)->second;
}
ConstVector Compute::vector(const float* flat, int block, std::string_view suffix) const {
  const model::Piece& p = piece(block, suffix);
  return part(flat + p.first, p.elements);
}
Vector Compute::vector(float* flat, int block, std::string_view suffix) const {
  const model::Piece& p = piece(block, suffix);
  return part(flat + p.first, p.elements);
}
ConstMatrix Compute::matrix(const float* flat, int block, std::string_view suffix) const {
  const model::Piece& p = piece(block, suffix);
  const auto columns = std::size_t(p.shape.back());
  return ConstMatrix(flat + p.first, std::size_t(p.elements) / columns, columns);
}
Matrix Compute::matrix(float* flat, int block, std::string_view suffix) const {
  const model::Piece& p = piece(block, suffix);
  const auto columns = std::size_t(p.shape.back());
  return Matrix(flat + p.first, std::size_t(p.elements) / columns, columns);
}
Vector Compute::saved(const Operands& o, std::string_view name) const {
  const int index = segments_.at(o.task.segment).saved.find(name)->second;
  return part(o.data(Role::saved, index), o.elements(Role::saved, index));
}

void Compute::run(const schedule::Program& program, const schedule::Task& task,
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
    case Operation::clear:
      return kernels::fill(0.0f, part(o.data(Role::grads), o.elements(Role::grads)));
    case Operation::accumulate:
      return kernels::add(
          part(static_cast<const float*>(o.data(Role::source)), o.elements(Role::source)),
          part(o.data(Role::destination), o.elements(Role::destination)));
    case Operation::norm: return norm(o);
    case Operation::optimizer_step: return optimizer_step(o, step);
    default: break;
  }
  throw Error(Failure::bug, "'{}' is not a compute task", schedule::label(task));
}

// --- update -------------------------------------------------------------------------------------

void Compute::optimizer_step(const Operands& o, const StepScalars& step) const {
  const BlockPieces& pieces = blocks_.at(o.block());
  const double norm = std::sqrt(o.data<double>(Role::totals)[1]);
  kernels::AdamW adamw = step.adamw;
  if (step.clip_norm > 0.0) adamw.grad_scale = float(std::min(1.0, step.clip_norm / (norm + 1e-6)));
  const std::int64_t shard_first =
      o.task.at(Role::weights).first_byte / std::int64_t(sizeof(float));
  float* weights = o.data(Role::weights);
  const float* grads = o.data(Role::grads);
  std::int64_t part_first = shard_first;
  // The shard's state is in two places: what stays on the device, then what came from the host.
  for (Role place : {Role::moments, Role::staged}) {
    float* m = o.optional(place);
    if (m == nullptr) continue;
    const std::int64_t part_elements = o.elements(place) / 2;
    float* v = m + part_elements;
    for (const model::Piece& piece : pieces.layout.pieces) {
      const auto [first, elements] =
          overlap(piece.first, piece.elements, part_first, part_elements);
      if (elements == 0) continue;
      const bool decays = pieces.block.parameters[std::size_t(piece.parameter)].decays;
      adamw.weight_decay = decays ? step.weight_decay : 0.0f;
      const std::int64_t in_shard = first - shard_first, in_part = first - part_first;
      kernels::adamw_step(adamw, part(grads + in_shard, elements),
                          part(weights + in_shard, elements), part(m + in_part, elements),
                          part(v + in_part, elements));
    }
    part_first += part_elements;
  }
}

/// Squares of this rank's part of the gradients: each element of the model is counted on one rank.
void Compute::norm(const Operands& o) const {
  double* totals = o.data<double>(Role::totals);
  totals[0] = o.task.find(Role::loss) ? *o.data<double>(Role::loss) : 0.0;
  totals[1] = 0.0;
  for (const schedule::Operand& operand : o.task.operands) {
    if (operand.role != Role::grads) continue;
    const BlockPieces& pieces = blocks_.at(operand.index);
    const float* grads = o.data(Role::grads, operand.index);
    const std::int64_t first_element = operand.first_byte / std::int64_t(sizeof(float));
    for (const model::Piece& piece : pieces.layout.pieces) {
      const model::Parameter& parameter = pieces.block.parameters[std::size_t(piece.parameter)];
      if (!parameter.splits(tp_) && place_.tp_rank != 0) continue;
      const auto [first, elements] = overlap(piece.first, piece.elements, first_element,
                                             operand.bytes / std::int64_t(sizeof(float)));
      if (elements > 0)
        totals[1] += kernels::sum_squares(part(grads + (first - first_element), elements));
    }
  }
}

}  // namespace brume::engine
