/// @file Parameters of the blocks that a rank holds, by their ids.
#pragma once

#include <array>
#include <map>
#include <vector>

#include "engine/optimizer.hpp"
#include "model/model.hpp"
#include "operands.hpp"
#include "plan/plan.hpp"

namespace brume::engine {

inline std::size_t index_of(model::ParameterId id) {
  return std::size_t(model::num_parts * int(id.module) + int(id.part));
}

/// A block's parameters within its flat buffers.
struct BlockPieces {
  model::Block block;
  model::Layout layout;
  std::vector<UpdateRule> rules;  ///< a rule per parameter of the block
  std::array<int, model::num_parts * model::num_modules>
      indices;  ///< pieces by ParameterId; -1: none

  const model::Parameter& parameter(const model::Piece& piece) const {
    return block.parameters[piece.parameter];
  }
  /// @return null if the block has no such parameter
  const model::Piece* find(model::ParameterId id) const {
    const int index = indices[index_of(id)];
    return index < 0 ? nullptr : &layout.pieces[index];
  }

  // Views of a parameter in flat weights, or of its gradient in flat gradients; an empty one if
  // there is none, or it is frozen.
  template <class Storage>
  kernels::ConstVectorOf<Storage> vector(const Storage* flat, model::ParameterId id) const {
    const model::Piece* piece = find(id);
    if (piece == nullptr) return {};
    return {flat + piece->first, std::size_t(piece->elements)};
  }
  template <class Storage>
  kernels::ConstMatrixOf<Storage> matrix(const Storage* flat, model::ParameterId id) const {
    const model::Piece* piece = find(id);
    if (piece == nullptr) return {};
    const auto columns = std::size_t(piece->shape.back());
    return {flat + piece->first, std::size_t(piece->elements) / columns, columns};
  }
  /// A parameter that is kept in fp32.
  template <class Storage>
  kernels::ConstVector in_fp32(const Storage* flat, model::ParameterId id) const {
    const model::Piece* piece = find(id);
    if (piece == nullptr || flat == nullptr) return {};
    return {reinterpret_cast<const float*>(flat + piece->first),
            std::size_t(parameter(*piece).stored_values(piece->elements))};
  }
  kernels::Vector vector_grads(float* flat, model::ParameterId id) const {
    const model::Piece* piece = find(id);
    if (piece == nullptr || parameter(*piece).frozen) return {};
    return part(flat + piece->first, piece->elements);
  }
  kernels::Matrix matrix_grads(float* flat, model::ParameterId id) const {
    const model::Piece* piece = find(id);
    if (piece == nullptr || parameter(*piece).frozen) return {};
    const int columns = int(piece->shape.back());
    return rows(flat + piece->first, int(piece->elements) / columns, columns);
  }
};

/// @return pieces by block: the blocks of the rank's stages, and the token table of a tied head
std::map<int, BlockPieces> block_pieces(const plan::Plan& plan, const model::Config& model,
                                        const plan::Place& place, const Optimizer& optimizer);

}  // namespace brume::engine
