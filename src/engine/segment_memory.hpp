/// @file Tensors, gradients and statistics of a pass in the memory of its task.
#pragma once

#include <cstddef>

#include "segment_tasks.hpp"

namespace brume::engine {

/// All of the workspace, of which a task may have parts.
template <class Storage>
Storage* SegmentTasks<Storage>::workspace(const Operands& o) {
  const schedule::Operand* const part = o.task.find(Role::workspace);
  if (part == nullptr) return nullptr;
  return o.data<Storage>(Role::workspace) - part->first_byte / std::int64_t(sizeof(Storage));
}

template <class Storage>
auto SegmentTasks<Storage>::pass(const Operands& o, bool backward) const -> Pass {
  const List& list = lists_.at(o.task.segment);
  const bool embeds = o.task.segment == SegmentKind::embedding;
  Pass p{.o = o,
         .list = list,
         .block = blocks_.at(o.block()),
         .rows =
             embeds ? 0 : stream(o, Role::input).extent_int(0) * list.tensor(TensorId::input).share,
         .backward = backward,
         .scratch = workspace(o),
         .products = o.optional<Storage>(Role::products),
         .gelu_in_product = false};
  if (backward && p.products == nullptr && p.scratch != nullptr) {
    p.products = p.scratch;
    p.scratch += list.product_elements;
  }
  if (p.scratch != nullptr)
    p.dequantized = p.scratch + (backward ? list.dequantized_backward : list.dequantized_forward);
  // In a segment that is an MLP alone the norm's output is where the segment's will be, so that the
  // workspace is free for GELU's, unless it was gathered there.
  p.gelu_in_product = !backward && list.product_before >= 0 && o.task.segment == SegmentKind::mlp &&
                      o.task.find(Role::output);
  return p;
}

template <class Storage>
bool SegmentTasks<Storage>::keeps(const Pass& p, TensorId id) const {
  const int saved = p.list.tensor(p.list.segment.tensor(id).rows_of).saved;
  return saved >= 0 && p.o.task.find(Role::saved, saved) != nullptr;
}

/// The tensor where it is kept, or else in the scratch. The scratch also holds an output that
/// nobody reads.
template <class Storage>
auto SegmentTasks<Storage>::tensor(const Pass& p, TensorId id) const -> Matrix {
  if (id == TensorId::input) return p.of_round(stream(p.o, Role::input));
  if (id == TensorId::output)
    return p.of_round(p.o.task.find(Role::output)
                          ? stream(p.o, Role::output)
                          : rows(p.scratch, p.all_rows / p.list.tensor(id).share, hidden_));
  if (id == p.list.segment.terms) return this->tensor(p, TensorId::output);
  if (const TensorId all = p.list.segment.tensor(id).rows_of; all != id)
    return own_rows(p, id, this->tensor(p, all));
  const Tensor& tensor = p.list.tensor(id);
  if (keeps(p, id))
    return rows(p.o.template data<Storage>(Role::saved, tensor.saved) + skipped(p, tensor),
                num_rows(p, tensor), tensor.columns);
  if (tensor.brought >= 0) {  // a backward that makes nothing of it again may do without
    if (!p.o.task.find(Role::normed, tensor.brought)) return {};
    return p.of_round(stream(p.o, Role::normed, tensor.brought));
  }
  if (p.gelu_in_product && id == p.list.op(p.list.product_before).read)
    return stream(p.o, Role::output);
  return rows(
      p.scratch + (p.backward ? tensor.again_offset : tensor.forward_offset) + skipped(p, tensor),
      num_rows(p, tensor), tensor.columns);
}

/// A gradient lies in the place of its tensor's, or in that of another tensor: then as this rank's
/// rows, if the other one has more.
template <class Storage>
auto SegmentTasks<Storage>::gradient(const Pass& p, TensorId id) const -> Matrix {
  if (id == TensorId::input)
    return p.of_round(stream(p.o, p.o.task.find(Role::output) ? Role::output : Role::gradient));
  const TensorId place = p.list.segment.tensor(id).gradient_of;
  const Matrix all = gradient_at(p, place);
  const bool whole = id != TensorId::output || p.list.tensor(id).share == 1;
  return place == id && whole ? all : own_rows(p, id, all);
}

/// The rows of a tensor on this rank, from a matrix that may have those of other ranks too.
template <class Storage>
auto SegmentTasks<Storage>::own_rows(const Pass& p, TensorId id, const Matrix& all) const
    -> Matrix {
  const Tensor& tensor = p.list.tensor(id);
  const int count = num_rows(p, tensor);
  if (count == all.extent_int(0) || all.data() == nullptr) return all;
  return Matrix(all.data() + std::size_t(tensor.rank * count) * all.stride(0), std::size_t(count),
                all.extent(1), all.stride(0));
}

/// The place of a tensor's gradient; of the output's it has all tokens.
template <class Storage>
auto SegmentTasks<Storage>::gradient_at(const Pass& p, TensorId id) const -> Matrix {
  if (id == TensorId::output) return p.of_round(stream(p.o, Role::gradient));
  const Tensor& tensor = p.list.tensor(id);
  switch (p.list.segment.tensor(id).gradient) {
    case model::Tensor::Gradient::in_place: return this->tensor(p, id);
    case model::Tensor::Gradient::products:
      return rows(p.products + tensor.backward_offset + skipped(p, tensor), num_rows(p, tensor),
                  tensor.columns);
    case model::Tensor::Gradient::scratch: break;
  }
  return rows(p.scratch + tensor.backward_offset + skipped(p, tensor), num_rows(p, tensor),
              tensor.columns);
}

template <class Storage>
kernels::Vector SegmentTasks<Storage>::statistic(const Pass& p, TensorId id) const {
  const int saved = p.list.tensors[std::size_t(id)].saved;
  if (p.o.task.find(Role::saved, saved) == nullptr) return {};
  return part(p.o.data(Role::saved, saved), p.o.elements(Role::saved, saved));
}

/// The gradient of a tensor of fp32, in the scratch.
template <class Storage>
float* SegmentTasks<Storage>::wide_gradient(const Pass& p, TensorId id) const {
  if (p.scratch == nullptr) return nullptr;
  return reinterpret_cast<float*>(p.scratch + p.list.tensor(id).backward_offset);
}

/// Such a tensor of a forward.
template <class Storage>
float* SegmentTasks<Storage>::wide(const Pass& p, TensorId id) const {
  return reinterpret_cast<float*>(p.scratch + p.list.tensor(id).forward_offset);
}

template <class Storage>
int SegmentTasks<Storage>::num_rows(const Pass& p, const Tensor& tensor) const {
  if (tensor.held) return made_routes(p).held_rows();
  if (tensor.sent) return sent_rows(p).held_rows();
  const bool own = tensor.share > 1 && p.list.arrival > 0;
  const int tokens = tensor.arrives || own ? p.all_rows : p.rows;
  return tokens * tensor.copies / tensor.share;
}

/// Elements of the tokens before a round.
template <class Storage>
std::int64_t SegmentTasks<Storage>::skipped(const Pass& p, const Tensor& tensor) const {
  if (tensor.held || tensor.sent || tensor.arrives) return 0;
  return std::int64_t{p.first_row} * tensor.copies * tensor.columns;
}

}  // namespace brume::engine
