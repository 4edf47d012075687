/// @file Tiles of the causal scores, and the products that attention makes of them.
#pragma once

#include <cmath>
#include <type_traits>

#include "kernels/attention.hpp"
#include "kernels/gemm.hpp"
#include "kernels/host.hpp"

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
  std::int64_t stride;  // floats from one token to the next
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

/// Gives `hidden` to the keys after the query of row r, up to a full vector, and 0 to those further
/// on.
///
/// @return  the length to work on: whole vectors, so that a row of any length costs no scalar rest
inline int hide_later_keys(const Tile& tile, int r, float* row, float hidden) {
  const int visible = std::min(tile.cols, tile.first_query + r - tile.first_key + 1);
  const int whole = (visible + lanes - 1) / lanes * lanes;
  std::fill(row + visible, row + whole, hidden);
  if (whole < tile.cols) std::fill(row + whole, row + tile.cols, 0.0f);
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

inline float score_scale(int head_dim) { return 1.0f / std::sqrt(float(head_dim)); }

/// scores [rows, cols] = alpha a b^T, a from the tile's queries, b from its keys
inline void scores_of(const Tile& tile, int head_dim, float alpha, Factor a, Factor b,
                      float* scores) {
  a.data += tile.first_query * a.stride;
  b.data += tile.first_key * b.stride;
  b.transpose = Transpose::yes;
  gemm(tile.rows, tile.cols, head_dim, alpha, a, b, 0.0f, scores, key_block);
}

/// out (+)= tile x: one row of `out` a query, one row of `x` a key; `out` is not read when `fresh`
inline void tile_times(const Tile& tile, int head_dim, const float* weights, Factor x, bool fresh,
                       float* out, std::int64_t stride) {
  x.data += tile.first_key * x.stride;
  gemm(tile.rows, head_dim, tile.cols, 1.0f, {weights, key_block}, x, fresh ? 0.0f : 1.0f,
       out + tile.first_query * stride, stride);
}

/// out += tile^T x: one row of `out` a key, one row of `x` a query
inline void tile_transposed_times(const Tile& tile, int head_dim, const float* weights, Factor x,
                                  float* out, std::int64_t stride) {
  x.data += tile.first_query * x.stride;
  gemm(tile.cols, head_dim, tile.rows, 1.0f, {weights, key_block, Transpose::yes}, x, 1.0f,
       out + tile.first_key * stride, stride);
}

inline void check_attention(const char* kernel, const AttentionShape& shape, const ConstMatrix& qkv,
                            const ConstMatrix& o, const ConstVector& lse, const Vector& workspace) {
  const std::size_t tokens = std::size_t(shape.batch) * shape.seq_len;
  const std::size_t width = std::size_t(shape.heads) * shape.head_dim;
  promise(qkv.extent(0) == tokens && qkv.extent(1) == std::size_t(shape.width()) &&
              o.extent(0) == tokens && o.extent(1) == width &&
              lse.extent(0) == tokens * shape.heads,
          kernel, "qkv [N, (H + 2 K) D], o [N, H D] and lse [batch H T] must fit the shape");
  promise(shape.key_head(shape.heads - 1) < shape.keys(), kernel,
          "each group of query heads needs a key head");
  promise(workspace.extent(0) * sizeof(float) >= attention_workspace_bytes(shape), kernel,
          "the workspace is too small");
}

}  // namespace brume::kernels
