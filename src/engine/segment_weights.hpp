/// @file Parameters of operators and their gradients.
#pragma once

#include <algorithm>
#include <cstddef>

#include "segment_tasks.hpp"

namespace brume::engine {

/// A head multiplies with its own table or with the tied one.
template <class Storage>
auto SegmentTasks<Storage>::weight(const Pass& p, model::ParameterId id) const -> ConstMatrix {
  if (const Storage* tied = p.o.template optional<Storage>(Role::weights, 1))
    return {tied, std::size_t(rows_of_table_), std::size_t(hidden_)};
  return p.block.matrix(p.o.template data<Storage>(Role::weights), id);
}

/// A product's weight, which is made of blocks where the product does not take them.
template <class Storage>
void SegmentTasks<Storage>::set_weight(const Pass& p, model::ParameterId id, Call& c) const {
  const model::Piece* const piece = p.block.find(id);
  const Quantization format =
      piece == nullptr ? Quantization::none : p.block.parameter(*piece).quantization;
  if (format == Quantization::none) {
    c.weight = weight(p, id);
    return;
  }
  const std::int64_t values = p.block.parameter(*piece).stored_values(piece->elements);
  const std::int64_t columns = piece->shape.back();
  const Storage* const weights = p.o.template data<Storage>(Role::weights);
  const auto* const blocks = reinterpret_cast<const std::byte*>(weights + piece->first);
  if (!p.backward && c.kind == OperatorKind::matmul &&
      kernels::takes_blocks<Storage>(c.read.extent_int(0))) {
    c.blocks = {format, blocks, values / columns, columns};
    return;
  }
  kernels::dequantize<Storage>(format, blocks, {p.dequantized, std::size_t(values)});
  c.weight = {p.dequantized, std::size_t(values / columns), std::size_t(columns)};
}

template <class Storage>
kernels::Matrix SegmentTasks<Storage>::weight_grads(const Pass& p, model::ParameterId id) const {
  if (float* tied = p.o.optional(Role::grads, 1)) return rows(tied, rows_of_table_, hidden_);
  return p.block.matrix_grads(p.o.optional(Role::grads), id);
}

/// Whether a product that reads the tensor, or one made from it again, trains its weights.
template <class Storage>
bool SegmentTasks<Storage>::trains_reader(const Pass& p, TensorId id) const {
  return std::ranges::any_of(p.list.segment.operators, [&](const Operator& op) {
    if (op.read != id || op.in_place()) return false;
    if (!model::is_product(op.kind)) return op.again && trains_reader(p, op.written);
    return std::ranges::any_of(op.modules, [&](Module module) {
      return weight_grads(p, {module, op.part}).data() != nullptr;
    });
  });
}

/// Whether this rank adds biases and the stream to a tensor: one rank does if terms are summed.
template <class Storage>
bool SegmentTasks<Storage>::adds_to(const Pass& p, TensorId id) const {
  return p.list.rank == 0 || !p.list.segment.tensor(id).summed;
}

/// Adds a rank's part of its heads' sinks. Ranks that share a sequence have other heads, and sum
/// gradients.
template <class Storage>
void SegmentTasks<Storage>::set_sinks(const Pass& p, Call& c) const {
  const int heads = c.attention.heads, first = heads < attention_.heads ? cp_rank_ * heads : 0;
  const auto all = p.block.vector(p.o.template data<Storage>(Role::weights), {Module::sinks});
  c.sinks = {all.data() + first, std::size_t(heads)};
  if (!p.backward) return;
  const kernels::Vector grads = p.block.vector_grads(p.o.optional(Role::grads), {Module::sinks});
  if (grads.data() == nullptr) return;
  if (heads < attention_.heads && c.write == Write::replace) kernels::fill(0.0f, grads);
  c.d_sinks = part(grads.data() + first, heads);
}

/// Adds the biases of a product of experts, of which this rank may have some columns.
template <class Storage>
void SegmentTasks<Storage>::set_experts_bias(const Pass& p, Module module, Call& c) const {
  const model::ParameterId id{module, Part::bias};
  const model::Piece* const piece = p.block.find(id);
  if (piece == nullptr) return;
  const std::size_t columns = std::size_t(piece->elements) / std::size_t(num_held_);
  const auto as_rows = [&](const auto& vector) {
    return kernels::MatrixView(vector.data(), std::size_t(num_held_), columns);
  };
  if (module == Module::experts_out) c.first_biased = int(piece->offset.back());
  if (const Storage* const weights = p.o.template optional<Storage>(Role::weights))
    c.experts_bias = as_rows(p.block.vector(weights, id));
  if (const kernels::Vector grads = p.block.vector_grads(p.o.optional(Role::grads), id);
      grads.data() != nullptr)
    c.d_experts_bias = as_rows(grads);
}

}  // namespace brume::engine
