/// @file Array types of the kernels, by rank. Memory belongs to the caller: a view only points.
#pragma once

#include <cstdint>
#include <string>

#include "base/narrow.hpp"
#include "kernels/views.hpp"

namespace brume::kernels {

using brume::bfloat16;
using brume::float16;

template <class Element>
struct Views {
  using Vector = VectorView<Element>;
  using ConstVector = VectorView<const Element>;
  using Matrix = MatrixView<Element>;
  using ConstMatrix = MatrixView<const Element>;
};

// Weights and activations are stored as `Storage`, float, bfloat16 or float16; sums, statistics and
// gradients of parameters are fp32 whatever it is. A kernel's Storage is never deduced:
// kernel<bfloat16>(...).
template <class Storage>
using VectorOf = typename Views<Storage>::Vector;
template <class Storage>
using ConstVectorOf = typename Views<Storage>::ConstVector;
template <class Storage>
using MatrixOf = typename Views<Storage>::Matrix;
template <class Storage>
using ConstMatrixOf = typename Views<Storage>::ConstMatrix;

using Vector = VectorOf<float>;
using ConstVector = ConstVectorOf<float>;
using Matrix = MatrixOf<float>;
using ConstMatrix = ConstMatrixOf<float>;
using ConstTokens = VectorView<const std::int32_t>;

/// Columns [first, first + count) of a matrix; rows stay as far apart.
template <class Storage = float>
MatrixOf<Storage> columns(const MatrixOf<Storage>& matrix, int first, int count) {
  return MatrixOf<Storage>(matrix.data() + first, matrix.extent(0), std::size_t(count),
                           matrix.stride(0));
}

/// Rows [first, first + count) of a matrix.
template <class Storage = float>
MatrixOf<Storage> rows(const MatrixOf<Storage>& matrix, int first, int count) {
  return MatrixOf<Storage>(matrix.data() + std::int64_t(first) * std::int64_t(matrix.stride(0)),
                           std::size_t(count), matrix.extent(1), matrix.stride(0));
}

/// One rank's part of a vocabulary that is cut over ranks: rows of a table, columns of logits.
struct VocabularyPart {
  int first = 0;  ///< token of the first row or column
  int vocab = 0;  ///< V, of all parts; 0: this is the only one
};

/// Rows of the ranks that share a sequence: of its 2 R chunks of equal length rank r has r and
/// 2 R - 1 - r, so that causal attention is as much work for each. One rank has all in order.
struct Zigzag {
  int ranks = 1, rank = 0;
  int chunk = 0;  ///< tokens of a chunk

  constexpr bool cuts() const { return ranks > 1; }
  /// The place in the sequence of this rank's row.
  constexpr int position(int row) const {
    if (!cuts()) return row;
    return row + (row < chunk ? rank : 2 * ranks - 2 - rank) * chunk;
  }
  /// The row of a token among those of all ranks, in rank order.
  constexpr int row(int position) const {
    if (!cuts()) return position;
    const int number = position / chunk;
    const int before = number < ranks ? 2 * number : 2 * (2 * ranks - 1 - number) + 1;
    return before * chunk + position % chunk;
  }
  /// This rank's first row at or behind a place in the sequence; behind all rows if there is none.
  constexpr int first_row(int from) const {
    if (!cuts()) return from;
    const auto within = [&](int begin) {
      return from <= begin ? 0 : from < begin + chunk ? from - begin : chunk;
    };
    const int first = within(position(0));
    return first < chunk ? first : chunk + within(position(chunk));
  }
};

/// Documents of a batch of sequences, each of which is as if it were alone. By default a sequence
/// is one document.
struct Documents {
  /// [N] the place in its sequence where each token's document begins; it never falls within one
  const std::int32_t* begins = nullptr;
  /// The place of the first token in its sequence: where that is cut, of this rank's tokens.
  std::int64_t first = 0;
  Zigzag zigzag = {};  ///< if it cuts, tokens are this rank's rows, `begins` has all tokens
  int seq_len = 0;     ///< tokens of a sequence; 0: as many as a table of positions has rows

  constexpr int begin_of(std::int64_t token) const { return begins ? begins[token] : 0; }
  /// The place of a token in its document.
  constexpr int place(std::int64_t token, std::int64_t seq_len) const {
    if (zigzag.cuts()) return zigzag.position(int(token)) - begin_of(zigzag.position(int(token)));
    return int((first + token) % seq_len) - begin_of(token);
  }
  /// Whether sequences are longer than a table of positions.
  constexpr bool pads(std::int64_t rows) const { return seq_len > rows; }
  /// A token's row of a table of positions. Tokens that pad a sequence may share the last one.
  constexpr int table_row(std::int64_t token, std::int64_t rows) const {
    if (!pads(rows)) return place(token, rows);
    const int row = place(token, seq_len), last = int(rows) - 1;
    return row < last ? row : last;
  }
};

/// Treatment of the output's present content by a kernel.
enum class Write { replace, accumulate };

/// Starts Kokkos for the whole process: the first Runtime starts it, later ones find it running,
/// and it ends with the process, because Kokkos cannot be started twice. May be made on any thread,
/// and is destroyed on the same one, whose team of cores goes with it.
class Runtime {
 public:
  /// @param threads  cores one rank computes with, see `use_threads`
  explicit Runtime(int threads);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
};

/// Sets how many cores the kernels called from this thread may use.
///
/// OpenMP keeps this number per calling thread, and a new thread begins with all cores: a worker
/// thread that calls kernels must call this first. Another number may also give other last bits.
///
/// @param threads  >= 1
/// @throws Error(bug)  when threads is below 1
void use_threads(int threads);

/// Packages that decide how fast kernels are: "oneDNN 2.6.0, Kokkos 3.4.0 Serial".
std::string versions();

}  // namespace brume::kernels
