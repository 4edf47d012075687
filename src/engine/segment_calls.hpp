/// @file Operators as kernel calls, one for each of their modules.
#pragma once

#include <algorithm>
#include <iterator>
#include <utility>

#include "segment_tasks.hpp"

namespace brume::engine {

/// Columns [first, first + count) of a view; all of it if there are none, or it is empty.
template <class View, class Columns>
void cut(View& view, const Columns& columns) {
  if (columns.count == 0 || view.data() == nullptr) return;
  view =
      View(view.data() + columns.first, view.extent(0), std::size_t(columns.count), view.stride(0));
}

/// The call of an operator without its parameters and gradients.
template <class Storage>
auto SegmentTasks<Storage>::call(const Pass& p, const Operator& op) const -> Call {
  Call c{.kind = op.kind,
         .write = p.adds ? Write::accumulate : p.o.write(),
         .eps = eps_,
         .gain_base = gain_base_,
         .scale = embedding_scale_,
         .attention = p.list.attention,
         .head_dim = attention_.head_dim,
         .vocabulary = vocabulary_};
  // Attention sees whole sequences, all else this rank's tokens of them.
  const auto* const begins = p.o.template optional<std::int32_t>(Role::documents);
  c.attention.documents = {.begins = begins};
  c.documents = {.begins = begins ? begins + first_token_ : nullptr,
                 .first = first_token_,
                 .zigzag = attention_.zigzag,
                 .seq_len = attention_.seq_len};
  if (op.kind == OperatorKind::embedding)
    c.tokens = tokens(p.o, Role::input);
  else
    c.read = tensor(p, op.second.value_or(op.read));
  if (op.second) c.keys = tensor(p, op.read);
  if (op.kind == OperatorKind::logits)
    c.logits = rows(p.o.data(Role::output), p.rows, rows_of_table_);
  else if (!p.backward || op.written != p.list.segment.terms)
    c.written = tensor(p, op.written);
  if (op.kind == OperatorKind::cached_attention)
    c.cache = {.data = p.o.template data<Storage>(Role::cache),
               .block_tokens = block_tokens_,
               .blocks_per_sequence = blocks_per_sequence_,
               .sequences = p.o.template data<std::int32_t>(Role::sequences),
               .tables = p.o.template data<std::int32_t>(Role::tables)};
  if (op.kind == OperatorKind::attention) c.lse = statistic(p, op.statistics.front());
  if (model::is_norm(op.kind)) {
    c.mean = part(statistic(p, op.statistics.front()).data() + p.first_row, c.read.extent_int(0));
    c.rstd = statistic(p, op.statistics.back());
    c.rstd = part(c.rstd.data() + p.first_row, std::int64_t(c.rstd.size()) - p.first_row);
    if (op.modules.front() == Module::q_down_norm || op.modules.front() == Module::kv_down_norm)
      c.eps = float(model::latent_norm_eps);
  }
  route(p, op, c);
  const auto block = [&](int heads) {
    return kernels::HeadBlocks::Block{heads * attention_.head_dim, std::min(heads, cp_)};
  };
  if (op.kind == OperatorKind::cut_heads)
    c.heads = {{block(attention_.heads), block(attention_.keys()), block(attention_.keys())}, cp_};
  if (op.kind == OperatorKind::join_heads)
    c.heads = {{kernels::HeadBlocks::Block{c.written.extent_int(1), cp_}}, cp_};
  if (op.kind == OperatorKind::cut_keys) {
    cut(c.read, columns_[std::size_t(Module::kv)]);
    c.heads = {{kernels::HeadBlocks::Block{c.read.extent_int(1)}}};
  }
  if (op.kind == OperatorKind::expand_keys || model::is_latent_product(op.kind)) c.latent = latent_;
  if (op.kind == OperatorKind::narrow_values) {
    c.latent = latent_;
    c.latent.heads = p.list.attention.heads;
  }
  cut(c.read, columns_of_second(op));
  if (op.kind == OperatorKind::rope) {
    cut(c.written, turned_columns(op));
    if (!op.modules.empty() && op.modules.front() == Module::k_turned) c.head_dim = latent_.turned;
    c.angles = kernels::ConstMatrix(reinterpret_cast<const float*>(p.list.angles.data()),
                                    std::size_t(attention_.seq_len), std::size_t(rotary_dim_));
  }
  return c;
}

/// Columns that positions turn: those of a module, or of queries and keys.
template <class Storage>
auto SegmentTasks<Storage>::turned_columns(const Operator& op) const -> Columns {
  if (!op.modules.empty()) return columns_[std::size_t(op.modules.front())];
  return {0, (attention_.heads + attention_.keys()) * attention_.head_dim};
}

/// Columns that an operator reads of its second tensor; none: all.
template <class Storage>
auto SegmentTasks<Storage>::columns_of_second(const Operator& op) const -> Columns {
  const bool expands = op.kind == OperatorKind::expand_keys && op.second;
  return expands ? columns_[std::size_t(Module::k_turned)] : Columns{};
}

/// Whether a norm is of some columns, such as those of queries and keys. The others are copied.
template <class Storage>
bool SegmentTasks<Storage>::norms_columns(const Operator& op, const Matrix& read) const {
  if (!model::is_norm(op.kind)) return false;
  const int count = columns_[std::size_t(op.modules.front())].count;
  return count > 0 && count < read.extent_int(1);
}

/// Calls `each` with the parameters of every module, and with its columns of shared tensors.
///
/// @param multiplies  whether products read weights, and not only their gradients
template <class Storage>
template <class Each>
void SegmentTasks<Storage>::for_modules(const Pass& p, const Operator& op, const Call& whole,
                                        Each each, bool multiplies) const {
  const Storage* weights = p.o.template optional<Storage>(Role::weights);
  float* const grads = p.o.optional(Role::grads);
  if (op.kind == OperatorKind::embedding) {
    Call c = whole;
    const model::ParameterId token{Module::token}, position{Module::position};
    if (weights != nullptr) c.weight = p.block.matrix(weights, token);
    if (weights != nullptr && tp_rank_ == 0) c.positions = p.block.matrix(weights, position);
    c.d_weight = p.block.matrix_grads(grads, token);
    c.d_positions = p.block.matrix_grads(grads, position);
    return each(c);
  }
  const auto reads_too = [&](const Operator& other) {
    return other.read == op.read && !other.in_place() && !model::is_epilogue(other.kind);
  };
  const std::vector<Operator>& operators = p.list.segment.operators;
  const bool first = std::none_of(operators.data(), &op, reads_too);
  Write write_d_read = first ? Write::replace : Write::accumulate;
  if (model::is_latent_product(op.kind)) {
    Call c = whole;
    c.weight = weight(p, {Module::kv_up});
    return each(c);
  }
  const bool logits = model::makes_logits(op.kind);
  const bool attends =
      op.kind == OperatorKind::attention || op.kind == OperatorKind::cached_attention;
  if (op.modules.empty() || logits || attends || op.kind == OperatorKind::rope) {
    Call c = whole;
    c.write_d_read = write_d_read;
    if (logits) {
      const model::ParameterId bias{op.modules.front(), Part::bias};
      c.weight = weight(p, {op.modules.front()});
      c.d_weight = weight_grads(p, {op.modules.front()});
      c.bias = p.block.vector(weights, bias);
      c.d_bias = p.block.vector_grads(grads, bias);
    } else if (attends && !op.modules.empty()) {
      set_sinks(p, c);
    }
    return each(c);
  }
  std::int64_t statistics = 0;
  for (const Module module : op.modules) {
    Call c = whole;
    const Columns& low = low_columns_[std::size_t(module)];
    const Columns& columns = op.part == Part::lora_a ? low : columns_[std::size_t(module)];
    cut(c.written, columns);
    cut(c.d_written, columns);
    if (op.kind == OperatorKind::experts) {
      if (op.part == Part::weight) set_experts_bias(p, module, c);
    } else if (op.part == Part::weight) {
      if (adds_to(p, op.written)) c.bias = p.block.vector(weights, {module, Part::bias});
      c.d_bias = p.block.vector_grads(grads, {module, Part::bias});
    }
    if (op.part == Part::lora_b) {
      cut(c.read, low);
      cut(c.d_read, low);
      c.residual = c.written;
      write_d_read = Write::replace;
    }
    if (model::is_product(op.kind)) {
      // Gathered latent features have a turned key after them.
      if (module == Module::kv_up && op.part != Part::lora_b) {
        cut(c.read, columns_[std::size_t(Module::kv_down_norm)]);
        cut(c.d_read, columns_[std::size_t(Module::kv_down_norm)]);
      }
      if (multiplies) set_weight(p, {module, op.part}, c);
      c.d_weight = weight_grads(p, {module, op.part});
      c.write_d_read = std::exchange(write_d_read, Write::accumulate);
      // A tied table's gradient was cleared: the embedding adds to it too.
      if (p.o.task.find(Role::weights, 1)) c.write = Write::accumulate;
    } else {
      cut(c.read, columns);
      cut(c.d_read, columns);
      c.gain = p.block.vector(weights, {module});
      c.d_gain = p.block.vector_grads(grads, {module});
      const auto count = std::int64_t(c.read.size() / c.gain.size());
      c.rstd = part(c.rstd.data() + std::exchange(statistics, statistics + count), count);
    }
    each(c);
  }
}

/// Scales the tensor between an adapter's factors, or its gradient: terms of one scale together.
template <class Storage>
void SegmentTasks<Storage>::scale_low(const Operator& op, Matrix low) const {
  for (auto first = op.modules.begin(); first != op.modules.end();) {
    const float scale = lora_scales_[std::size_t(*first)];
    const auto end = std::find_if(first, op.modules.end(), [&](Module module) {
      return lora_scales_[std::size_t(module)] != scale;
    });
    const Columns &begin = low_columns_[std::size_t(*first)],
                  &last = low_columns_[std::size_t(*std::prev(end))];
    kernels::scale<Storage>(
        scale, kernels::columns<Storage>(low, begin.first, last.first + last.count - begin.first));
    first = end;
  }
}

template <class Storage>
void SegmentTasks<Storage>::run_forward(const Pass& p, const Operator& op, const Call& whole,
                                        bool again) const {
  const bool of_columns = norms_columns(op, whole.read);
  if (of_columns)
    kernels::copy<Storage>({whole.read.data(), whole.read.size()},
                           {whole.written.data(), whole.written.size()});
  for_modules(p, op, whole, [&](Call c) {
    if (of_columns) c.read = c.written;
    again && !of_columns ? c.again() : c.forward();
  });
  if (op.part == Part::lora_a) scale_low(op, whole.written);
}

}  // namespace brume::engine
