/// @file Tiles of the causal scores, and the products that attention makes of them.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>
#include <vector>

#include "kernels/attention.hpp"
#include "kernels/host/causal_product.hpp"
#include "kernels/host/gemm.hpp"
#include "kernels/host/loops.hpp"
#include "kernels/soft_cap.hpp"

namespace brume::kernels {

// One tile of scores is 64 KiB, so two stay in L2. Few queries, or half of a diagonal tile is
// wasted; many keys, because oneDNN runs near its peak then (measured for head_dim 32 and 64).
constexpr int query_block = 64;
constexpr int key_block = 256;
constexpr int score_floats = query_block * key_block;
static_assert(key_block % lanes == 0, "else a row of a tile has no room for whole vectors");
static_assert(key_block % query_block == 0, "else a query of a tile might see none of its keys");

/// Queries, keys and values (or what belongs to them) of one head in one sequence.
template <class Element>
struct Head {
  Element *q, *k, *v;
  std::int64_t stride, key_stride;  // elements from one query or key to the next
  int sequence;
};

/// A tile of one sequence's scores: queries [first_query, +rows) against keys [first_key, +cols),
/// by their places in the sequence. They are rows from query_row and key_row on.
struct Tile {
  int first_query, rows;
  int first_key, cols;
  int query_row, key_row;
  std::array<int, query_block> begin;  ///< the first of these keys that each query sees
};

/// Blocks of queries of a sequence. A block has queries of one run only.
inline int query_blocks(const AttentionShape& shape) {
  return shape.queries() / shape.run() * int(ceil_div(shape.run(), query_block));
}
/// The row of a block's first query.
inline int row_of_block(const AttentionShape& shape, int block) {
  const int of_run = int(ceil_div(shape.run(), query_block));
  return block / of_run * shape.run() + block % of_run * query_block;
}
/// The end of the block of queries that begins at one of them.
inline int end_of_queries(const AttentionShape& shape, int first_query) {
  return std::min(first_query + query_block, shape.run_end(first_query));
}

/// The first key of the tile that has a key. Tiles begin with runs.
inline int tile_of_key(const AttentionShape& shape, int key) {
  const int within = key % shape.run();
  return key - within % key_block;
}
/// The end of a tile's keys.
inline int end_of_tile(const AttentionShape& shape, int first_key) {
  return std::min(first_key + key_block, shape.run_end(first_key));
}

/// The tile without the keys that no query of it may see, as they come after it.
///
/// @param query_row  the row of its first query
inline Tile tile_at(const AttentionShape& shape, int sequence, int query_row, int first_key) {
  const int first_query = shape.zigzag.position(query_row);
  const int last_query = end_of_queries(shape, first_query);
  Tile tile{first_query, last_query - first_query,
            first_key,   std::min(end_of_tile(shape, first_key), last_query) - first_key,
            query_row,   shape.zigzag.row(first_key),
            {}};
  for (int r = 0; r < tile.rows; ++r)
    tile.begin[r] =
        std::clamp(shape.first_key(sequence, first_query + r) - first_key, 0, tile.cols);
  return tile;
}

/// The query r of a tile sees its keys [begin[r], end_of_keys).
inline int end_of_keys(const Tile& tile, int r) {
  return std::clamp(tile.first_query + r - tile.first_key + 1, 0, tile.cols);
}

/// Gives `hidden` to the keys that the query of row r does not see, up to a full vector.
///
/// @return  the length to work on: whole vectors, so that a row of any length costs no scalar rest
inline int hide_others(const Tile& tile, int r, float* row, float hidden) {
  const int end = end_of_keys(tile, r);
  const int whole = int(round_up(end, lanes));
  std::fill(row, row + tile.begin[r], hidden);
  std::fill(row + end, row + whole, hidden);
  return whole;
}

/// Caps the scores of row r that are seen.
inline void cap_scores(const Tile& tile, int r, float cap, float* row) {
  if (cap == 0.0f) return;
#pragma omp simd
  for (int c = tile.begin[r]; c < end_of_keys(tile, r); ++c) row[c] = soft_cap(row[c], cap);
}

/// The columns of k and v beside queries.
template <class View>
View keys_beside(const View& qkv, const AttentionShape& shape) {
  const int queries = shape.heads * shape.head_dim;
  return View(qkv.data() + queries, qkv.extent(0), qkv.extent(1) - std::size_t(queries),
              qkv.stride(0));
}

template <class View>
auto head_of(const View& q, const View& keys, const AttentionShape& shape, int sequence, int head) {
  auto* const k =
      &keys(std::int64_t(sequence) * shape.seq_len, shape.key_head(head) * shape.head_dim);
  return Head<std::remove_pointer_t<decltype(k)>>{
      &q(std::int64_t(sequence) * shape.queries(), head * shape.head_dim),
      k,
      k + shape.keys() * shape.head_dim,
      std::int64_t(q.stride(0)),
      std::int64_t(keys.stride(0)),
      sequence};
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

/// fp32 arrays [T, D], of which queries may use fewer rows, for the calculations with one head of a
/// narrower format.
class WideHead {
 public:
  WideHead(const AttentionShape& shape, int arrays)
      : queries_{shape.queries()},
        rows_{shape.seq_len},
        columns_{shape.head_dim},
        values_(std::size_t(arrays) * rows_ * columns_) {}

  float* at(int array) { return values_.data() + std::int64_t(array) * rows_ * columns_; }
  template <Narrow Storage>
  void load(int array, const Storage* from, std::int64_t stride) {
    copy_rows(from, stride, queries_, columns_, at(array), columns_);
  }
  template <Narrow Storage>
  void load_keys(int array, const Storage* from, std::int64_t stride) {
    copy_rows(from, stride, rows_, columns_, at(array), columns_);
  }
  template <Narrow Storage>
  void store(int array, Storage* to, std::int64_t stride) {
    copy_rows(at(array), columns_, queries_, columns_, to, stride);
  }
  template <Narrow Storage>
  void store_keys(int array, Storage* to, std::int64_t stride) {
    copy_rows(at(array), columns_, rows_, columns_, to, stride);
  }
  void clear(int array) { std::fill_n(at(array), std::int64_t(rows_) * columns_, 0.0f); }
  /// Three arrays from `array` on as queries, keys and values.
  Head<float> head(int array, int sequence) {
    return {at(array), at(array + 1), at(array + 2), columns_, columns_, sequence};
  }

 private:
  int queries_, rows_, columns_;
  std::vector<float> values_;
};

/// scores [rows, cols] = alpha a b^T, a from the tile's queries, b from its keys
inline void scores_of(const Tile& tile, int head_dim, float alpha, Factor a, Factor b,
                      float* scores) {
  a.data += tile.query_row * a.stride;
  b.data += tile.key_row * b.stride;
  b.transpose = Transpose::yes;
  gemm(tile.rows, tile.cols, head_dim, alpha, a, b, 0.0f, scores, key_block);
}

/// Numbers [first, end), none where end <= first.
struct Range {
  int first, end;
};

/// The queries of the tile that see its key c.
inline Range queries_of(const Tile& tile, int c) {
  const auto* const begin = tile.begin.data();
  return {std::clamp(tile.first_key + c - tile.first_query, 0, tile.rows),
          int(std::upper_bound(begin, begin + tile.rows, c) - begin)};
}

/// Keys of the tile that all its queries see, but for some of the last query block's.
inline Range shared_keys(const Tile& tile) {
  const int end = std::clamp(tile.first_query - tile.first_key, 0, tile.cols);
  return {std::min(tile.begin[tile.rows - 1], end), end};
}

// A hidden key has no weight, not the weight 0: what is not finite there must not reach a query
// that does not see it. Where all see all, a matrix product; before and behind, rows of a group
// share what all of them see and each adds the rest alone.

/// out[i] += weighed sums over range(i), for rows [first, end) of `out`, whose ranges neither begin
/// nor end before those of the row before.
template <class Weigh, class RangeOf>
void add_ranges(Range rows, int head_dim, const Weigh& weigh, const RangeOf& range, float* out,
                std::int64_t stride) {
  const auto alone = [&](int i, int first, int end) {
    add_weighed_rows<1>(weigh(i, first, end), head_dim, out + i * stride, stride);
  };
  int i = rows.first;
  for (; i + sum_rows <= rows.end; i += sum_rows) {
    const Range shared{range(i + sum_rows - 1).first, range(i).end};
    const bool any = shared.first < shared.end;
    for (int j = i; j < i + sum_rows; ++j)
      alone(j, range(j).first, any ? shared.first : range(j).end);
    if (!any) continue;
    add_weighed_rows<sum_rows>(weigh(i, shared.first, shared.end), head_dim, out + i * stride,
                               stride);
    for (int j = i; j < i + sum_rows; ++j) alone(j, shared.end, range(j).end);
  }
  for (; i < rows.end; ++i) alone(i, range(i).first, range(i).end);
}

/// out += tile x: one row of `out` a query, one row of `x` a key
inline void add_tile_times(const Tile& tile, int head_dim, const float* weights, Factor x,
                           float* out, std::int64_t stride) {
  const Range dense = shared_keys(tile);
  x.data += tile.key_row * x.stride;
  out += tile.query_row * stride;
  gemm(tile.rows, head_dim, dense.end - dense.first, 1.0f, {weights + dense.first, key_block},
       {x.data + dense.first * x.stride, x.stride}, 1.0f, out, stride);
  const auto keys = [&](int r, int first, int end) {
    return Weighed{.weights = weights + r * key_block + first,
                   .row_step = key_block,
                   .next_step = 1,
                   .x = x.data + first * x.stride,
                   .x_stride = x.stride,
                   .count = end - first};
  };
  const auto before = [&](int r) {
    return Range{tile.begin[r], std::min(dense.first, end_of_keys(tile, r))};
  };
  const auto behind = [&](int r) {
    return Range{std::max(dense.end, tile.begin[r]), end_of_keys(tile, r)};
  };
  if (tile.begin[0] < dense.first) add_ranges({0, tile.rows}, head_dim, keys, before, out, stride);
  add_ranges({0, tile.rows}, head_dim, keys, behind, out, stride);
}

/// out += tile^T x: one row of `out` a key, one row of `x` a query
inline void add_tile_transposed_times(const Tile& tile, int head_dim, const float* weights,
                                      Factor x, float* out, std::int64_t stride) {
  const Range dense = shared_keys(tile);
  x.data += tile.query_row * x.stride;
  out += tile.key_row * stride;
  gemm(dense.end - dense.first, head_dim, tile.rows, 1.0f,
       {weights + dense.first, key_block, Transpose::yes}, x, 1.0f, out + dense.first * stride,
       stride);
  const auto queries = [&](int c, int first, int end) {
    return Weighed{.weights = weights + first * key_block + c,
                   .row_step = 1,
                   .next_step = key_block,
                   .x = x.data + first * x.stride,
                   .x_stride = x.stride,
                   .count = end - first};
  };
  const auto seeing = [&](int c) { return queries_of(tile, c); };
  add_ranges({tile.begin[0], dense.first}, head_dim, queries, seeing, out, stride);
  add_ranges({dense.end, tile.cols}, head_dim, queries, seeing, out, stride);
}

}  // namespace brume::kernels
