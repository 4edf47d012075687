#include "compute.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "compute_matrices.hpp"
#include "device/device.hpp"
#include "kernels/muon.hpp"
#include "kernels/pointwise.hpp"
#include "model/storage.hpp"

namespace brume::engine {

using kernels::Write;
using schedule::Operation;
using schedule::Role;

namespace {

kernels::UpdateKernels update_kernels(const Optimizer& optimizer, const model::Config& model,
                                      Moments moments) {
  return optimizer.kernels ? *optimizer.kernels
                           : kernels::update_kernels(model.optimizer->elementwise().name, moments);
}

}  // namespace

template <class Storage>
ComputeOf<Storage>::ComputeOf(const plan::Plan& plan, const model::Config& model, int rank,
                              const Optimizer& optimizer, const Arena& arena)
    : arena_(arena),
      model_(model),
      wide_kernels_(update_kernels(optimizer, model,
                                   model.moments == Moments::fp8 ? Moments::fp32 : model.moments)),
      blocked_kernels_(update_kernels(optimizer, model, Moments::fp8)),
      matrix_scale_(optimizer.matrix_scale),
      place_(plan::place(plan, rank)),
      tp_(plan.stages[place_.stage].tp),
      tp_rank_(place_.at[model::Axis::tp]),
      blocks_(block_pieces(plan, model, place_, optimizer)),
      segments_(plan, model, place_, blocks_) {
  require(model.optimizer->elementwise().fields.size() < kernels::most_state_fields, Failure::bug,
          "optimizer '{}' has too many fields of state", model.optimizer->name);
}

template <class Storage>
void ComputeOf<Storage>::run(const schedule::Program& program, const schedule::Task& task,
                             const StepScalars& step) const {
  const Operands o{program, task, arena_};
  switch (task.operation) {
    case Operation::forward:
    case Operation::recompute: return segments_.forward(o, step);
    case Operation::backward:
    case Operation::backward_input:
    case Operation::backward_weights: return segments_.backward(o, step);
    case Operation::loss: return segments_.loss(o, step);
    case Operation::clear:
      return kernels::fill(0.0f, part(o.data(Role::grads), o.elements(Role::grads)));
    case Operation::accumulate: return accumulate(o);
    case Operation::norm: return norm(o);
    case Operation::optimizer_step:
    case Operation::host_step: return optimizer_step(o, step);
    case Operation::matrix_step: return matrix_step(o, step);
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

/// Numbers of a piece's elements from `first` of the block on.
kernels::ElementNumbers numbers(const model::Parameter& parameter, const model::Piece& piece,
                                std::int64_t first) {
  kernels::ElementNumbers numbers{.first = first - piece.first, .before = parameter.first_index};
  std::int64_t inner = 1;
  for (std::size_t d = piece.shape.size(); d-- > 0; inner *= piece.shape[d]) {
    if (piece.shape[d] == parameter.shape[d]) continue;
    numbers.run = piece.shape[d] * inner;
    numbers.stride = parameter.shape[d] * inner;
    numbers.before += piece.offset[d] * inner;
    break;  // one dimension is cut
  }
  return numbers;
}

}  // namespace

template <class Storage>
typename ComputeOf<Storage>::State ComputeOf<Storage>::state(const Operands& o, int index) const {
  const schedule::Buffer& buffer = o.program.buffer(o.task.at(Role::moments, index));
  return {buffer.first_element, buffer.first_element + buffer.elements,
          o.data<std::byte>(Role::moments, index),
          model::state_parts(model_, blocks_.at(o.block()).layout, buffer.first_element,
                             buffer.elements)};
}

template <class Storage>
kernels::UpdatedElements ComputeOf<Storage>::updated(const Elements<Storage>& weights,
                                                     const State& state, std::int64_t first,
                                                     std::int64_t end) const {
  kernels::UpdatedElements elements{.count = end - first};
  std::size_t fields = 0;
  for (const model::FieldPart& part : state.fields) {
    if (first < part.first || end > part.first + part.elements) continue;
    elements.state[fields] = state.data + part.first_byte + part.field.bytes(first - part.first);
    elements.formats[fields++] = part.field.quantization;
  }
  if constexpr (Narrow<Storage>) {
    elements.weight = elements.template field<float>(fields - 1);
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
  kernels::Update update = step.update;
  const Elements<Storage> weights = o.part_of_block<Storage>(Role::weights, 0);
  // Gradients and optimizer state are in two places each: what stays on the device, what came from
  // the host.
  for (int i : {0, 1})
    for (int j : {0, 1}) {
      if (!o.task.find(Role::grads, i) || !o.task.find(Role::moments, j)) continue;
      const Elements<> grads = o.part_of_block(Role::grads, i);
      const Elements<> directions =
          o.task.find(Role::directions) ? o.part_of_block(Role::directions, 0) : grads;
      const State state = this->state(o, j);
      for (const model::Piece& piece : pieces.layout.pieces) {
        const std::int64_t first = std::max({piece.first, grads.first, state.first});
        const std::int64_t end = std::min({piece.first + piece.elements, grads.end, state.end});
        if (first >= end) continue;
        kernels::UpdatedElements elements = updated(weights, state, first, end);
        elements.grad = grads.at(first);
        elements.numbers = numbers(pieces.parameter(piece), piece, first);
        update.t = double(updates_of(pieces.parameter(piece).name, step));
        if (pieces.parameter(piece).unit == model::UpdateUnit::matrix) {
          kernels::momentum_direction(update, squares, elements, model_.moments,
                                      directions.at(first));
          continue;
        }
        const UpdateRule& rule = pieces.rules[piece.parameter];
        update.lr = step.update.lr * rule.lr_scale;
        update.weight_decay = rule.weight_decay;
        const kernels::UpdateKernels& kernels =
            pieces.parameter(piece).blocked_moments ? blocked_kernels_ : wide_kernels_;
        (on_host ? kernels.on_host : kernels.here)(update, squares, elements);
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
    const bool dense = place_.holders(parameter).contains(model::Axis::ep);
    if (dense && place_.at[model::Axis::ep] != 0) continue;
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
