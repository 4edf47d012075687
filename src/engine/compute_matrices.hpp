/// @file Steps of whole matrices (Muon).
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "compute.hpp"
#include "kernels/muon.hpp"
#include "kernels/pointwise.hpp"

namespace brume::engine {

/// A parameter's matrices on tensor-parallel ranks: each has the same of them, whole or in part.
struct MatrixParts {
  model::Matrices whole;
  std::vector<model::Matrices> on_rank;  ///< one rank where none is cut
  std::vector<kernels::MatrixPart> places;
};

inline MatrixParts matrix_parts(const model::Parameter& parameter, const model::Piece& piece,
                                int tp, int ep) {
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

template <class Storage>
void ComputeOf<Storage>::matrix_step(const Operands& o, const StepScalars& step) const {
  const BlockPieces& pieces = blocks_.at(o.block());
  const Elements<Storage> weights = o.part_of_block<Storage>(schedule::Role::weights, 0);
  const model::MatrixWorkspace room = model::matrix_workspace(model_, pieces.block);
  std::byte* const workspace = o.data<std::byte>(schedule::Role::workspace);
  auto* const squares = reinterpret_cast<double*>(workspace);
  const auto matrix_at = [&](std::int64_t byte, std::int64_t rows, std::int64_t columns) {
    return engine::rows(reinterpret_cast<Storage*>(workspace + room.squares_bytes + byte),
                        int(rows), int(columns));
  };
  // Directions of all tensor-parallel ranks lie one behind the other.
  const auto directions = [&](int index, int rank) {
    const schedule::Buffer& buffer = o.program.buffer(o.task.at(schedule::Role::directions, index));
    return o.data(schedule::Role::directions, index) + rank * buffer.elements -
           buffer.first_element;
  };
  std::vector<State> states;
  for (int j : {0, 1})
    if (o.task.find(schedule::Role::moments, j)) states.push_back(state(o, j));
  for (const model::Piece& piece : pieces.layout.pieces) {
    const model::Parameter& parameter = pieces.parameter(piece);
    if (parameter.frozen || parameter.unit == model::UpdateUnit::element) continue;
    const MatrixParts parts = matrix_parts(parameter, piece, tp_, place_.ep);
    const bool is_cut = parts.on_rank.size() > 1;
    const int here = is_cut ? tp_rank_ : 0;
    const model::Matrices &whole = parts.whole, &mine = parts.on_rank[here];
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
                             rank == 0 ? kernels::Write::replace : kernels::Write::accumulate,
                             squares);
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
                                       transposed, parts.places[here], int(mine.columns),
                                       from - begin, updated(weights, state, from, to));
      }
    }
  }
}

}  // namespace brume::engine
