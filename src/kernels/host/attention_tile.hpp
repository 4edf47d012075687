/// @file Tiles of the causal scores, and the products that attention makes of them.
#pragma once

#include <cmath>
#include <type_traits>
#include <vector>

#include "kernels/attention.hpp"
#include "kernels/host/causal_product.hpp"
#include "kernels/host/gemm.hpp"
#include "kernels/host/loops.hpp"

namespace brume::kernels {

// One tile of scores is 64 KiB, so two stay in L2. Few queries, or half of a diagonal tile is
// wasted; many keys, because oneDNN runs near its peak then (measured for head_dim 32 and 64).
constexpr int query_block = 64;
constexpr int key_block = 256;
constexpr int tile_floats = query_block * key_block;
static_assert(key_block % lanes == 0, "else a row of a tile has no room for whole vectors");
static_assert(key_block % query_block == 0, "else a query of a tile might see none of its keys");

/// Queries, keys and values (or what belongs to them) of one head in one sequence.
template <class Element>
struct Head {
  Element *q, *k, *v;
  std::int64_t stride;  // elements from one token to the next
};

/// A tile of the scores: queries [first_query, +rows) against keys [first_key, +cols).
struct Tile {
  int first_query, rows;
  int first_key, cols;
};

/// The tile without the keys that no query of it may see.
inline Tile tile_at(int first_query, int first_key, int seq_len) {
  const int last_query = std::min(first_query + query_block, seq_len);
  return {first_query, last_query - first_query, first_key,
          std::min(first_key + key_block, last_query) - first_key};
}

/// Keys of the tile that its query r sees: the first so many.
inline int visible_keys(const Tile& tile, int r) {
  return std::min(tile.cols, tile.first_query + r - tile.first_key + 1);
}

/// Gives `hidden` to the keys after the query of row r, up to a full vector.
///
/// @return  the length to work on: whole vectors, so that a row of any length costs no scalar rest
inline int hide_later_keys(const Tile& tile, int r, float* row, float hidden) {
  const int visible = visible_keys(tile, r);
  const int whole = int(round_up(visible, lanes));
  std::fill(row + visible, row + whole, hidden);
  return whole;
}

template <class View>
auto head_of(const View& qkv, const AttentionShape& shape, int sequence, int head) {
  auto* const row = &qkv(std::int64_t(sequence) * shape.seq_len, 0);
  auto* const k = row + (shape.heads + shape.key_head(head)) * shape.head_dim;
  return Head<std::remove_pointer_t<decltype(row)>>{row + head * shape.head_dim, k,
                                                    k + shape.keys() * shape.head_dim,
                                                    std::int64_t(qkv.stride(0))};
}

/// to[n,:] = from[n,:] for n < rows, in the format of `to`.
template <class From, class To>
void copy_rows(const From* from, std::int64_t from_stride, int rows, int columns, To* to,
               std::int64_t to_stride) {
  for (int n = 0; n < rows; ++n) {
    const From* const in = from + n * from_stride;
    To* const out = to + n * to_stride;
#pragma omp simd
    for (int c = 0; c < columns; ++c) out[c] = in[c];
  }
}

/// fp32 arrays [T, D] for the calculations with one head of a narrower format.
class WideHead {
 public:
  WideHead(const AttentionShape& shape, int arrays)
      : rows_{shape.seq_len},
        columns_{shape.head_dim},
        values_(std::size_t(arrays) * rows_ * columns_) {}

  float* at(int array) { return values_.data() + std::int64_t(array) * rows_ * columns_; }
  template <Narrow Storage>
  void load(int array, const Storage* from, std::int64_t stride) {
    copy_rows(from, stride, rows_, columns_, at(array), columns_);
  }
  template <Narrow Storage>
  void store(int array, Storage* to, std::int64_t stride) {
    copy_rows(at(array), columns_, rows_, columns_, to, stride);
  }
  void clear(int array) { std::fill_n(at(array), std::int64_t(rows_) * columns_, 0.0f); }
  /// Three arrays from `array` on as queries, keys and values.
  Head<float> head(int array) { return {at(array), at(array + 1), at(array + 2), columns_}; }

 private:
  int rows_, columns_;
  std::vector<float> values_;
};

inline float score_scale(int head_dim) { return 1.0f / std::sqrt(float(head_dim)); }

/// scores [rows, cols] = alpha a b^T, a from the tile's queries, b from its keys
inline void scores_of(const Tile& tile, int head_dim, float alpha, Factor a, Factor b,
                      float* scores) {
  a.data += tile.first_query * a.stride;
  b.data += tile.first_key * b.stride;
  b.transpose = Transpose::yes;
  gemm(tile.rows, tile.cols, head_dim, alpha, a, b, 0.0f, scores, key_block);
}

/// The first query of the tile that sees its key c.
inline int first_seeing(const Tile& tile, int c) {
  return std::clamp(tile.first_key + c - tile.first_query, 0, tile.rows);
}

/// Keys of the tile that all its queries see.
inline int shared_keys(const Tile& tile) {
  return std::clamp(tile.first_query - tile.first_key, 0, tile.cols);
}

// A hidden key has no weight, not the weight 0: what is not finite there must not reach a query
// that does not see it. Where all see all, a matrix product; on the diagonal, rows of a group share
// what all of them see and each adds the rest alone.

/// out += tile x: one row of `out` a query, one row of `x` a key
inline void add_tile_times(const Tile& tile, int head_dim, const float* weights, Factor x,
                           float* out, std::int64_t stride) {
  const int dense = shared_keys(tile);
  x.data += tile.first_key * x.stride;
  out += tile.first_query * stride;
  gemm(tile.rows, head_dim, dense, 1.0f, {weights, key_block}, x, 1.0f, out, stride);
  const auto keys = [&](int r, int first, int last) {
    return Weighed{.weights = weights + r * key_block + first,
                   .row_step = key_block,
                   .next_step = 1,
                   .x = x.data + first * x.stride,
                   .x_stride = x.stride,
                   .count = last - first};
  };
  int r = 0;
  for (; r + sum_rows <= tile.rows; r += sum_rows) {
    const int shared = visible_keys(tile, r);
    add_weighed_rows<sum_rows>(keys(r, dense, shared), head_dim, out + r * stride, stride);
    for (int j = r + 1; j < r + sum_rows; ++j)
      add_weighed_rows<1>(keys(j, shared, visible_keys(tile, j)), head_dim, out + j * stride,
                          stride);
  }
  for (; r < tile.rows; ++r)
    add_weighed_rows<1>(keys(r, dense, visible_keys(tile, r)), head_dim, out + r * stride, stride);
}

/// out += tile^T x: one row of `out` a key, one row of `x` a query
inline void add_tile_transposed_times(const Tile& tile, int head_dim, const float* weights,
                                      Factor x, float* out, std::int64_t stride) {
  const int dense = shared_keys(tile);
  x.data += tile.first_query * x.stride;
  out += tile.first_key * stride;
  gemm(dense, head_dim, tile.rows, 1.0f, {weights, key_block, Transpose::yes}, x, 1.0f, out,
       stride);
  const auto queries = [&](int c, int first, int last) {
    return Weighed{.weights = weights + first * key_block + c,
                   .row_step = 1,
                   .next_step = key_block,
                   .x = x.data + first * x.stride,
                   .x_stride = x.stride,
                   .count = last - first};
  };
  int c = dense;
  for (; c + sum_rows <= tile.cols; c += sum_rows) {
    const int shared = first_seeing(tile, c + sum_rows - 1);
    for (int j = c; j < c + sum_rows - 1; ++j)
      add_weighed_rows<1>(queries(j, first_seeing(tile, j), shared), head_dim, out + j * stride,
                          stride);
    add_weighed_rows<sum_rows>(queries(c, shared, tile.rows), head_dim, out + c * stride, stride);
  }
  for (; c < tile.cols; ++c)
    add_weighed_rows<1>(queries(c, first_seeing(tile, c), tile.rows), head_dim, out + c * stride,
                        stride);
}

}  // namespace brume::kernels
