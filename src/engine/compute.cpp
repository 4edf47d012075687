#include "compute.hpp"

#include <algorithm>

#include "base/error.hpp"
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

/// A parameter's matrices on tensor-parallel ranks: each has the same of them, whole or in part.
struct MatrixParts {
  model::Matrices whole;
  std::vector<model::Matrices> on_rank;  ///< one rank where none is cut
  std::vector<kernels::MatrixPart> places;
};

namespace {

MatrixParts matrix_parts(const model::Parameter& parameter, const model::Piece& piece, int tp,
                         int ep) {
  MatrixParts parts{.whole = model::matrices(parameter.shape), .on_rank = {}, .places = {}};
  if (!parameter.cuts_matrices(tp, ep))
    return {parts.whole, {model::matrices(piece.shape)}, {kernels::MatrixPart{}}};
  const auto dim = std::size_t(parameter.cut_dim(ep));
  for (int rank = 0; rank < tp; ++rank) {
    std::vector<std::int64_t> shape = parameter.shape;
    const model::Cut mine = model::cut(shape[dim], tp, rank);
    shape[dim] = mine.count;
    parts.on_rank.push_back(model::matrices(shape));
    kernels::MatrixPart& place = parts.places.emplace_back();
    (dim + 1 == shape.size() ? place.first_column : place.first_row) = int(mine.first);
  }
  return parts;
}

}  // namespace

template <class Storage>
void ComputeOf<Storage>::matrix_step(const Operands& o, const StepScalars& step) const {
  const BlockPieces& pieces = blocks_.at(o.block());
  const Elements<Storage> weights = o.part_of_block<Storage>(Role::weights, 0);
  const model::MatrixWorkspace room = model::matrix_workspace(model_, pieces.block);
  std::byte* const workspace = o.data<std::byte>(Role::workspace);
  auto* const squares = reinterpret_cast<double*>(workspace);
  const auto matrix_at = [&](std::int64_t byte, std::int64_t rows, std::int64_t columns) {
    return engine::rows(reinterpret_cast<Storage*>(workspace + room.squares_bytes + byte),
                        int(rows), int(columns));
  };
  // Directions of all tensor-parallel ranks lie one behind the other.
  const auto directions = [&](int index, int rank) {
    const schedule::Buffer& buffer = o.program.buffer(o.task.at(Role::directions, index));
    return o.data(Role::directions, index) + rank * buffer.elements - buffer.first_element;
  };
  std::vector<State> states;
  for (int j : {0, 1})
    if (o.task.find(Role::moments, j)) states.push_back(state(o, j));
  for (const model::Piece& piece : pieces.layout.pieces) {
    const model::Parameter& parameter = pieces.parameter(piece);
    if (parameter.frozen || parameter.unit == model::UpdateUnit::element) continue;
    const MatrixParts parts = matrix_parts(parameter, piece, tp_, place_.ep);
    const bool is_cut = parts.on_rank.size() > 1;
    const int here = is_cut ? tp_rank_ : 0;
    const model::Matrices &whole = parts.whole, &mine = parts.on_rank[std::size_t(here)];
    const bool transposed = whole.rows > whole.columns;
    const std::int64_t m = std::min(whole.rows, whole.columns),
                       n = std::max(whole.rows, whole.columns);
    const UpdateRule& rule = pieces.rules[piece.parameter];
    const float lr = step.update.lr * rule.lr_scale;
    const float length = float(lr * step_scale(matrix_scale_, whole.rows, whole.columns));
    for (std::int64_t i = 0; i < mine.count; ++i) {
      const std::int64_t begin = piece.first + i * mine.elements();
      const std::int64_t first = std::max(begin, weights.first),
                         end = std::min(begin + mine.elements(), weights.end);
      if (first >= end) continue;
      const auto direction = [&](std::size_t rank) {
        const model::Matrices& of_rank = parts.on_rank[rank];
        const float* const data = is_cut ? directions(1, int(rank)) : directions(0, 0);
        return kernels::ConstMatrix(data + piece.first + i * of_rank.elements(),
                                    std::size_t(of_rank.rows), std::size_t(of_rank.columns));
      };
      for (std::size_t rank = 0; rank < parts.on_rank.size(); ++rank) {
        const kernels::ConstMatrix d = direction(rank);
        kernels::sum_squares(part(d.data(), std::int64_t(d.size())),
                             rank == 0 ? Write::replace : Write::accumulate, squares);
      }
      const auto x = matrix_at(0, m, n);
      for (std::size_t rank = 0; rank < parts.on_rank.size(); ++rank)
        kernels::normalize<Storage>(direction(rank), parts.places[rank], squares, transposed, x);
      const auto orthogonal = kernels::orthogonalize<Storage>(
          x, matrix_at(room.matrix_bytes, m, n), matrix_at(2 * room.matrix_bytes, m, m),
          matrix_at(2 * room.matrix_bytes + room.gram_bytes, m, m),
          model::orthogonalize_iterations);
      for (const State& state : states) {
        const std::int64_t from = std::max(first, state.first), to = std::min(end, state.end);
        if (from < to)
          kernels::step_along<Storage>(1.0f - lr * rule.weight_decay, length, orthogonal,
                                       transposed, parts.places[std::size_t(here)],
                                       int(mine.columns), from - begin,
                                       updated(weights, state, from, to));
      }
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
