/// @file Parts of attention by tiles: blocks of rows, exponentials, and the keys that queries see.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/host/attention_by_tiles.hpp"
#include "kernels/host/few_rows.hpp"
#include "kernels/host/tiles.hpp"
#include "kernels/vector_math.hpp"

#ifdef __x86_64__

namespace brume::kernels {

// Scores are made in blocks of two by two tiles: 32 keys, one a row, by 32 queries, one a column.
// Softmax then needs no sum within a register. A product reads rows of its left factor as they are
// stored; its right factor has tiles of pairs: the elements of two successive inner numbers side by
// side. Queries and keys behind the last one are zeros that nobody sees.
inline constexpr int block_floats = side * side;
inline constexpr int key_blocks = 4;   // of a forward's softmax, and of a span
inline constexpr int query_sides = 4;  // of a span, for which gradients stay in the cache
inline constexpr int span = key_blocks * side;
static_assert(key_blocks == query_sides, "spans are square");

/// to = 32 rows of `columns` elements at row_at(r), of which `rows` are there; zeros elsewhere.
///
/// @return  whether all values are finite
template <class RowAt>
bool copy_block(const RowAt& row_at, int rows, int columns, bfloat16* to, int padded) {
  std::uint16_t most = 0;
  for (int r = 0; r < side; ++r, to += padded) {
    const int count = r < rows ? columns : 0;
    if (count > 0) std::memcpy(to, row_at(r), std::size_t(count) * sizeof(bfloat16));
    std::fill(to + count, to + padded, bfloat16(0.0f));
#pragma omp simd reduction(max : most)
    for (int c = 0; c < count; ++c) most = std::max(most, std::uint16_t(to[c].bits & 0x7fffu));
  }
  return most < 0x7f80u;
}

/// The block of rows that lie one after another.
inline bool copy_block(const bfloat16* from, std::int64_t stride, int rows, int columns,
                       bfloat16* to, int padded) {
  return copy_block([=](int r) { return from + r * stride; }, rows, columns, to, padded);
}

/// The block of keys, or of values, from a place in the sequence on.
inline bool copy_keys(const AttentionShape& shape, const bfloat16* from, std::int64_t stride,
                      int first, bfloat16* to, int padded) {
  return copy_block([&](int r) { return from + shape.zigzag.row(first + r) * stride; },
                    shape.seq_len - first, shape.head_dim, to, padded);
}

inline void store_lanes(const Lanes& from, float* to) { std::memcpy(to, &from, sizeof from); }

inline Lanes every(float value) { return value - Lanes{}; }

// With a mask GCC does not warn of what its own headers leave open.
inline constexpr __mmask16 all_lanes = 0xffff;
inline constexpr __mmask32 all_halves = 0xffffffff;

BRUME_WITH_TILES inline Lanes larger(const Lanes& a, const Lanes& b) {
  return Lanes(_mm512_maskz_max_ps(all_lanes, __m512(a), __m512(b)));  // b if one is NaN
}

/// e^x as by vector_exp, whose selections cost more than an instruction that scales. A result below
/// the smallest normal float would cost a hundred times as much, so it is made 0 by a mask.
BRUME_WITH_TILES inline Lanes exponentials(const Lanes& x) {
  const Lanes lowest = every(-87.3f), bounded = larger(lowest, x);
  const __mmask16 normal = _mm512_cmp_ps_mask(__m512(x), __m512(lowest), _CMP_NLT_UQ);
  const Lanes n = Lanes(_mm512_maskz_roundscale_ps(all_lanes, __m512(bounded * 1.44269504f), 8));
  const Lanes r = bounded - n * 0.693145752f - n * 1.42860677e-6f;
  Lanes p = 1.98756912e-4f * r + 1.39819994e-3f;
  p = p * r + 8.33345205e-3f;
  p = p * r + 4.16657962e-2f;
  p = p * r + 1.66666656e-1f;
  p = p * r + 0.5f;
  p = p * r * r + r + 1.0f;
  return Lanes(_mm512_maskz_scalef_ps(normal, __m512(p), __m512(n)));
}

inline Lanes capped(const Lanes& x, float cap) {
  Lanes out{};
  load_lanes([&](int j) { return soft_cap(x[j], cap); }, 0, out);
  return out;
}

/// bf16 of a and b: all of a, then all of b.
BRUME_WITH_TILES inline void store_rounded(const Lanes& a, const Lanes& b, bfloat16* to) {
  const __m512bh rounded = _mm512_cvtne2ps_pbh(__m512(b), __m512(a));
  std::memcpy(to, &rounded, sizeof rounded);
}

/// Pairs of bf16 of a[j] and b[j].
BRUME_WITH_TILES inline void store_pairs(const Lanes& a, const Lanes& b, bfloat16* to) {
  alignas(64) static constexpr std::uint16_t order[2 * lanes] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i rounded = __m512i(_mm512_cvtne2ps_pbh(__m512(b), __m512(a)));
  _mm512_storeu_si512(
      to, _mm512_maskz_permutexvar_epi16(all_halves, _mm512_load_si512(order), rounded));
}

/// 16 columns of the transpose of x, whose 16 rows are `stride` floats apart, times `factors` of
/// the rows' places, as rows of `to`.
inline void store_transposed(const float* x, std::int64_t stride, const float* factors, int rows,
                             int columns, bfloat16* to, std::int64_t to_stride) {
  alignas(64) float tile[tile_floats];
  transpose_tile(x, stride, tile);
  for (int r = 0; r < std::min(rows, tile_rows); ++r) {
    const float* const from = tile + r * lanes;
    bfloat16* const out = to + r * to_stride;
#pragma omp simd
    for (int c = 0; c < std::min(columns, lanes); ++c) out[c] = factors[r] * from[c];
  }
}

/// The keys that queries see: those from begin[n] on, up to n.
class Sight {
 public:
  Sight(const AttentionShape& shape, int sequence)
      : begin_(kept().get(shape.seq_len + side)) {  // a block may begin anywhere
    for (int n = 0; n < shape.seq_len; ++n) begin_[n] = shape.first_key(sequence, n);
    std::fill_n(begin_ + shape.seq_len, side, std::numeric_limits<std::int32_t>::max());
  }

  int first_key(int query) const { return begin_[query]; }
  /// Whether a query of 32 sees a key of `count`.
  bool any(int first_query, int first, int count) const {
    return first < first_query + side && begin_[first_query] < first + count;
  }
  /// Whether all see all.
  bool all(int first_query, int first, int count) const {
    return first + count <= first_query + 1 && begin_[first_query + side - 1] <= first;
  }
  const std::int32_t* begins(int query) const { return begin_ + query; }

 private:
  static Kept<std::int32_t>& kept() {
    thread_local Kept<std::int32_t> memory;
    return memory;
  }
  std::int32_t* begin_;
};

/// The keys that 16 queries see.
struct Seen {
  __m512i begin, query;

  BRUME_WITH_TILES Seen(const Sight& sight, int first_query)
      : begin(_mm512_loadu_si512(sight.begins(first_query))),
        query(_mm512_maskz_add_epi32(
            all_lanes, _mm512_set1_epi32(first_query),
            _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))) {}

  /// x where the query sees the key, `hidden` elsewhere.
  BRUME_WITH_TILES Lanes of(int key, const Lanes& x, const Lanes& hidden) const {
    const __m512i here = _mm512_set1_epi32(key);
    const __mmask16 seen =
        _mm512_mask_cmple_epi32_mask(_mm512_cmple_epi32_mask(begin, here), here, query);
    return Lanes(_mm512_mask_mov_ps(__m512(hidden), seen, __m512(x)));
  }
};

}  // namespace brume::kernels

#endif
