/// @file How a block's parameters lie in flat buffers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/config.hpp"
#include "model/parameters.hpp"
#include "symbolic/expr.hpp"

namespace brume::model {

/// Part `index` when something of `extent` is cut into parts of ceil(extent / parts), of which the
/// last may be smaller or empty. So are tensors and vocabularies cut over tensor-parallel ranks.
struct Cut {
  std::int64_t first, count;
};
Cut cut(std::int64_t extent, int parts, int index);

/// A parameter's piece on one tp rank, and where it lies in the block's flat buffers.
struct Piece {
  int parameter;                     ///< index into Block::parameters
  std::vector<std::int64_t> shape;   ///< local
  std::vector<std::int64_t> offset;  ///< offset of the piece in the global tensor
  std::int64_t first;                ///< first element in the flat block
  std::int64_t elements;             ///< number in the flat block
};

/// Numbers of fp32 in a cache line: at multiples of it pieces of a block begin and ranges are cut.
inline constexpr std::int64_t alignment_elements = 16;
/// The same of a block's trained and frozen elements, which also cut between quantized blocks.
std::int64_t trained_alignment(const Block& block);
std::int64_t frozen_alignment(const Block& block);
/// Says why tp cannot cut the model's quantized weights and moments: "tp = 4 must ..."; empty if it
/// can. With ep > 1 it cuts no expert.
std::string quantization_fault(const Config& config, int tp, int ep = 1);

/// The flat buffer of a block on one tp rank: what is trained, which alone has gradients and
/// optimizer state, and behind it what is frozen. Partial gradients come first, so that one small
/// all-reduce covers them, and experts last, before which an all-reduce over Axis::ep ends; each
/// piece starts at a multiple of trained_alignment or frozen_alignment, both parts are multiples of
/// `shards` times that so that ZeRO can cut them into equal aligned shards. Where tp cuts unevenly
/// each rank has room for the first one's piece, the largest: all ranks' layouts are alike. As far
/// as that leaves room, whole matrices of an update and blocked moments come last.
struct Layout {
  std::vector<Piece> pieces;         ///< pieces in flat order
  std::int64_t partial_elements;     ///< leading elements whose gradients are partial over tp
  std::int64_t dense_elements;       ///< leading ones, behind which all are of experts
  std::int64_t full_state_elements;  ///< leading ones, behind which all have less state: of whole
                                     ///< matrices or in blocks
  std::int64_t trained_elements;     ///< leading elements, padding included
  std::int64_t elements;             ///< all, padding included

  /// The piece of the parameter whose name ends in `suffix`. @throws Error(bug)
  const Piece& piece(const Block& block, std::string_view suffix) const;
};
/// The ranks over which whole experts are divided; of one, tp cuts each expert.
struct ExpertRanks {
  int count = 1;
  int rank = 0;  ///< this one
};
Layout layout(const Block& block, int tp, int tp_rank, int shards, ExpertRanks experts = {});

/// Elements of both parts of the flat buffer as expressions in "tp", "ep", "dp" and "cp", of which
/// dp cp / expert_data_ranks() are the shards, Layout::dense_elements and
/// Layout::full_state_elements.
struct LayoutElements {
  Expr trained, frozen, dense, full_state;
};
LayoutElements layout_elements(const Config& config, const Block& block);
/// The leading elements of it whose gradients are partial over tp, in variable "tp".
Expr layout_partial_elements(const Block& block);

/// The matrices [R, C] of a parameter, one after another.
struct Matrices {
  std::int64_t count, rows, columns;

  std::int64_t elements() const { return rows * columns; }  ///< elements of each
};
/// @param shape  of the parameter, or of its piece on a rank
Matrices matrices(const std::vector<std::int64_t>& shape);

/// Memory for the update of a block's largest matrix; none where no matrix is trained.
///
///   with m <= n: a sum of squares, two of [m, n] and two of [m, m] in the precision of weights
struct MatrixWorkspace {
  std::int64_t squares_bytes = 0, matrix_bytes = 0, gram_bytes = 0;

  std::int64_t bytes() const { return squares_bytes + 2 * (matrix_bytes + gram_bytes); }
};
MatrixWorkspace matrix_workspace(const Config& config, const Block& block);

/// The elements from the first matrix on of which tensor-parallel ranks have parts, to the last one
/// of them.
std::pair<std::int64_t, std::int64_t> cut_matrices(const Block& block, const Layout& layout, int tp,
                                                   int ep);

/// Elements of the token table on one tp rank, in "tp": ceil(V / tp) C.
Expr token_table_elements(const Config& config);

}  // namespace brume::model
