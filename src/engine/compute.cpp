#include "compute.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "kernels/cross_entropy.hpp"
#include "kernels/embedding.hpp"
#include "kernels/layer_norm.hpp"
#include "kernels/matmul.hpp"
#include "kernels/pointwise.hpp"

namespace brume::engine {

using kernels::ConstMatrix;
using kernels::ConstTokens;
using kernels::ConstVector;
using kernels::Matrix;
using kernels::Vector;
using kernels::Write;
using schedule::Operation;
using schedule::Role;

/// A task's operands as typed pointers.
struct Compute::Operands {
  const schedule::Program& program;
  const schedule::Task& task;
  const Arena& arena;

  template <typename T = float>
  T* data(Role role, int index = 0) const {
    const schedule::Operand& operand = task.at(role, index);
    return reinterpret_cast<T*>(arena.at(program.buffers[std::size_t(operand.buffer)]) +
                                operand.first_byte);
  }
  float* optional(Role role, int index = 0) const {
    return task.find(role, index) ? data(role, index) : nullptr;
  }
  std::int64_t elements(Role role, int index = 0) const {
    return task.at(role, index).bytes / std::int64_t(sizeof(float));
  }
  int block() const { return task.block; }
  Write write() const { return task.replaces ? Write::replace : Write::accumulate; }
};

namespace {

ConstVector part(const float* data, std::int64_t elements) {
  return ConstVector(data, std::size_t(elements));
}
Vector part(float* data, std::int64_t elements) { return Vector(data, std::size_t(elements)); }
Matrix rows(float* data, int num_rows, int num_columns) {
  return Matrix(data, num_rows, num_columns);
}

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
  require(model.family == model::Family::gpt, Failure::input,
          "a {} can be planned but not trained yet", model::name(model.family));
  tokens_ = stage.microbatch * model.seq_len;
  tp_ = stage.tp;
  hidden_ = model.hidden_size;
  hidden_tp_ = model.hidden_size / stage.tp;
  ffn_tp_ = model.ffn_size / stage.tp;
  vocab_ = model.vocab_size;
  eps_ = float(model.norm_eps);
  attention_ = {stage.microbatch, model.seq_len, model.num_heads / stage.tp, model.head_dim()};
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

void Compute::run(const schedule::Program& program, const schedule::Task& task,
                  const StepScalars& step) const {
  using model::SegmentKind;
  const Operands o{program, task, arena_};
  switch (task.operation) {
    case Operation::forward:
    case Operation::recompute:
      switch (task.segment) {
        case SegmentKind::embedding: return embedding_forward(o);
        case SegmentKind::attention: return attention_forward(o);
        case SegmentKind::mlp: return mlp_forward(o);
        case SegmentKind::parallel: break;
        case SegmentKind::head: return head_forward(o, step);
      }
      break;
    case Operation::backward:
      switch (task.segment) {
        case SegmentKind::embedding: return embedding_backward(o);
        case SegmentKind::attention: return attention_backward(o);
        case SegmentKind::mlp: return mlp_backward(o);
        case SegmentKind::parallel: break;
        case SegmentKind::head: return head_backward(o);
      }
      break;
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

// --- segments: the sequences of kernels that model/segments.cpp describes -----------------------

void Compute::embedding_forward(const Operands& o) const {
  const float* w = o.data(Role::weights);
  kernels::embedding_forward(ConstTokens(o.data<std::int32_t>(Role::input), std::size_t(tokens_)),
                             matrix(w, o.block(), "token"), matrix(w, o.block(), "position"),
                             rows(o.data(Role::output), tokens_, hidden_));
}

void Compute::embedding_backward(const Operands& o) const {
  float* g = o.data(Role::grads);
  kernels::embedding_backward(ConstTokens(o.data<std::int32_t>(Role::input), std::size_t(tokens_)),
                              rows(o.data(Role::gradient), tokens_, hidden_),
                              matrix(g, o.block(), "token"), matrix(g, o.block(), "position"));
}

/// output = residual + bias + inner W^T on tensor-parallel rank 0, inner W^T on the others: their
/// sum is the new residual stream.
void Compute::write_output(const Operands& o, std::string_view prefix, ConstMatrix inner) const {
  const float* w = o.data(Role::weights);
  const std::string name(prefix);
  const Matrix output = rows(o.data(Role::output), tokens_, hidden_);
  const bool carries_residual = place_.tp_rank == 0;
  if (carries_residual)
    kernels::add_bias(rows(o.data(Role::input), tokens_, hidden_),
                      vector(w, o.block(), name + ".bias"), output);
  kernels::linear_forward(inner, matrix(w, o.block(), name + ".weight"),
                          carries_residual ? Write::accumulate : Write::replace, output);
}

void Compute::attention_forward(const Operands& o) const {
  const float* w = o.data(Role::weights);
  const Matrix normed = rows(o.data(Role::workspace), tokens_, hidden_);
  const Matrix qkv = rows(o.data(Role::saved, 2), tokens_, 3 * hidden_tp_);
  const Matrix attended = rows(o.data(Role::saved, 3), tokens_, hidden_tp_);
  kernels::layer_norm_forward(
      rows(o.data(Role::input), tokens_, hidden_), vector(w, o.block(), "norm1.gain"),
      vector(w, o.block(), "norm1.bias"), eps_, normed, part(o.data(Role::saved, 0), tokens_),
      part(o.data(Role::saved, 1), tokens_));
  kernels::linear_forward(normed, matrix(w, o.block(), "attention.qkv.weight"), Write::replace,
                          qkv);
  kernels::add_bias(qkv, vector(w, o.block(), "attention.qkv.bias"), qkv);
  kernels::attention_forward(attention_, qkv, attended,
                             part(o.data(Role::saved, 4), o.elements(Role::saved, 4)));
  if (o.task.find(Role::output)) write_output(o, "attention.out", attended);
}

void Compute::attention_backward(const Operands& o) const {
  const float* w = o.data(Role::weights);
  float* g = o.data(Role::grads);
  const Matrix dy = rows(o.data(Role::gradient), tokens_, hidden_);
  const Matrix qkv = rows(o.data(Role::saved, 2), tokens_, 3 * hidden_tp_);
  const Matrix attended = rows(o.data(Role::saved, 3), tokens_, hidden_tp_);
  const Vector mean = part(o.data(Role::saved, 0), tokens_),
               rstd = part(o.data(Role::saved, 1), tokens_);
  const Matrix x = rows(o.data(Role::input), tokens_, hidden_);
  const Matrix d_qkv = rows(o.data(Role::workspace), tokens_, 3 * hidden_tp_);
  float* rest = d_qkv.data() + d_qkv.size();
  const Matrix d_attended = rows(rest, tokens_, hidden_tp_);

  kernels::linear_backward_input(dy, matrix(w, o.block(), "attention.out.weight"), Write::replace,
                                 d_attended);
  kernels::linear_backward_weight(dy, attended, o.write(),
                                  matrix(g, o.block(), "attention.out.weight"));
  kernels::bias_backward(dy, o.write(), vector(g, o.block(), "attention.out.bias"));
  kernels::attention_backward(attention_, qkv, attended,
                              part(o.data(Role::saved, 4), o.elements(Role::saved, 4)), d_attended,
                              d_qkv);
  const Matrix normed = rows(rest, tokens_, hidden_);  // where d attended was
  kernels::layer_norm_apply(x, vector(w, o.block(), "norm1.gain"),
                            vector(w, o.block(), "norm1.bias"), mean, rstd, normed);
  kernels::linear_backward_weight(d_qkv, normed, o.write(),
                                  matrix(g, o.block(), "attention.qkv.weight"));
  kernels::bias_backward(d_qkv, o.write(), vector(g, o.block(), "attention.qkv.bias"));
  kernels::linear_backward_input(d_qkv, matrix(w, o.block(), "attention.qkv.weight"),
                                 Write::replace, normed);
  kernels::layer_norm_backward(normed, x, vector(w, o.block(), "norm1.gain"), mean, rstd,
                               place_.tp_rank == 0 ? ConstMatrix(dy) : ConstMatrix(), dy, o.write(),
                               vector(g, o.block(), "norm1.gain"),
                               vector(g, o.block(), "norm1.bias"));
}

void Compute::mlp_forward(const Operands& o) const {
  const float* w = o.data(Role::weights);
  const Matrix normed = rows(o.data(Role::workspace), tokens_, hidden_);
  const Matrix wide = rows(o.data(Role::saved, 2), tokens_, ffn_tp_);
  kernels::layer_norm_forward(
      rows(o.data(Role::input), tokens_, hidden_), vector(w, o.block(), "norm2.gain"),
      vector(w, o.block(), "norm2.bias"), eps_, normed, part(o.data(Role::saved, 0), tokens_),
      part(o.data(Role::saved, 1), tokens_));
  kernels::linear_forward(normed, matrix(w, o.block(), "mlp.in.weight"), Write::replace, wide);
  if (!o.task.find(Role::output)) return;
  const Matrix activated = rows(o.data(Role::workspace), tokens_, ffn_tp_);  // where normed was
  kernels::gelu_forward(wide, vector(w, o.block(), "mlp.in.bias"), activated);
  write_output(o, "mlp.out", activated);
}

void Compute::mlp_backward(const Operands& o) const {
  const float* w = o.data(Role::weights);
  float* g = o.data(Role::grads);
  const Matrix dy = rows(o.data(Role::gradient), tokens_, hidden_);
  const Matrix wide = rows(o.data(Role::saved, 2), tokens_, ffn_tp_);
  const Vector mean = part(o.data(Role::saved, 0), tokens_),
               rstd = part(o.data(Role::saved, 1), tokens_);
  const Matrix x = rows(o.data(Role::input), tokens_, hidden_);
  const ConstVector in_bias = vector(w, o.block(), "mlp.in.bias");
  const Matrix d_wide = rows(o.data(Role::workspace), tokens_, ffn_tp_);
  float* rest = d_wide.data() + d_wide.size();

  const Matrix activated = rows(rest, tokens_, ffn_tp_);
  kernels::linear_backward_input(dy, matrix(w, o.block(), "mlp.out.weight"), Write::replace,
                                 d_wide);
  kernels::gelu_forward(wide, in_bias, activated);
  kernels::linear_backward_weight(dy, activated, o.write(), matrix(g, o.block(), "mlp.out.weight"));
  kernels::bias_backward(dy, o.write(), vector(g, o.block(), "mlp.out.bias"));
  kernels::gelu_backward(wide, in_bias, d_wide, d_wide);
  const Matrix normed = rows(rest, tokens_, hidden_);  // where gelu's output was
  kernels::layer_norm_apply(x, vector(w, o.block(), "norm2.gain"),
                            vector(w, o.block(), "norm2.bias"), mean, rstd, normed);
  kernels::linear_backward_weight(d_wide, normed, o.write(), matrix(g, o.block(), "mlp.in.weight"));
  kernels::bias_backward(d_wide, o.write(), vector(g, o.block(), "mlp.in.bias"));
  kernels::linear_backward_input(d_wide, matrix(w, o.block(), "mlp.in.weight"), Write::replace,
                                 normed);
  kernels::layer_norm_backward(normed, x, vector(w, o.block(), "norm2.gain"), mean, rstd,
                               place_.tp_rank == 0 ? ConstMatrix(dy) : ConstMatrix(), dy, o.write(),
                               vector(g, o.block(), "norm2.gain"),
                               vector(g, o.block(), "norm2.bias"));
}

void Compute::head_forward(const Operands& o, const StepScalars& step) const {
  const float* w = o.data(Role::weights);
  const float* tied = o.optional(Role::weights, 1);
  const Matrix normed = rows(o.data(Role::workspace), tokens_, hidden_);
  const Matrix logits = rows(o.data(Role::saved, 2), tokens_, vocab_);
  kernels::layer_norm_forward(rows(o.data(Role::input), tokens_, hidden_),
                              vector(w, o.block(), "norm.gain"), vector(w, o.block(), "norm.bias"),
                              eps_, normed, part(o.data(Role::saved, 0), tokens_),
                              part(o.data(Role::saved, 1), tokens_));
  kernels::linear_forward(normed,
                          tied ? ConstMatrix(tied, std::size_t(vocab_), std::size_t(hidden_))
                               : matrix(w, o.block(), "weight"),
                          Write::replace, logits);
  const double loss = kernels::cross_entropy(
      logits, ConstTokens(o.data<std::int32_t>(Role::targets), std::size_t(tokens_)),
      step.loss_scale, true);
  // Tensor-parallel ranks compute the same loss: one of them counts it.
  double& sum = *o.data<double>(Role::loss);
  sum = (o.task.replaces ? 0.0 : sum) + (place_.tp_rank == 0 ? loss : 0.0);
}

void Compute::head_backward(const Operands& o) const {
  const float* w = o.data(Role::weights);
  float* g = o.data(Role::grads);
  const float* tied = o.optional(Role::weights, 1);
  float* tied_grads = o.optional(Role::grads, 1);
  const Matrix d_logits = rows(o.data(Role::saved, 2), tokens_, vocab_);
  const Vector mean = part(o.data(Role::saved, 0), tokens_),
               rstd = part(o.data(Role::saved, 1), tokens_);
  const Matrix x = rows(o.data(Role::input), tokens_, hidden_);
  const Matrix normed = rows(o.data(Role::workspace), tokens_, hidden_);
  kernels::layer_norm_apply(x, vector(w, o.block(), "norm.gain"), vector(w, o.block(), "norm.bias"),
                            mean, rstd, normed);
  if (tied) {
    // The table's gradient was cleared: the embedding adds to it too.
    kernels::linear_backward_weight(d_logits, normed, Write::accumulate,
                                    rows(tied_grads, vocab_, hidden_));
    kernels::linear_backward_input(d_logits,
                                   ConstMatrix(tied, std::size_t(vocab_), std::size_t(hidden_)),
                                   Write::replace, normed);
  } else {
    kernels::linear_backward_weight(d_logits, normed, o.write(), matrix(g, o.block(), "weight"));
    kernels::linear_backward_input(d_logits, matrix(w, o.block(), "weight"), Write::replace,
                                   normed);
  }
  kernels::layer_norm_backward(normed, x, vector(w, o.block(), "norm.gain"), mean, rstd,
                               ConstMatrix(), rows(o.data(Role::gradient), tokens_, hidden_),
                               o.write(), vector(g, o.block(), "norm.gain"),
                               vector(g, o.block(), "norm.bias"));
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
