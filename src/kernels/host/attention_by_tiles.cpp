#include "kernels/host/attention_by_tiles.hpp"

#include <cmath>
#include <limits>

#include "kernels/host/few_rows.hpp"
#include "kernels/host/tiles.hpp"
#include "kernels/vector_math.hpp"

#ifdef __x86_64__

namespace brume::kernels {
namespace {

// Scores are made in blocks of two by two tiles: 32 keys, one a row, by 32 queries, one a column.
// Softmax then needs no sum within a register. A product reads rows of its left factor as they are
// stored; its right factor has tiles of pairs: the elements of two successive inner numbers side by
// side. Queries and keys behind the last one are zeros that nobody sees.
constexpr int block_floats = side * side;
constexpr int key_blocks = 4;   // of a forward's softmax, and of a span
constexpr int query_sides = 4;  // of a span, for which gradients stay in the cache
constexpr int span = key_blocks * side;
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
bool copy_block(const bfloat16* from, std::int64_t stride, int rows, int columns, bfloat16* to,
                int padded) {
  return copy_block([=](int r) { return from + r * stride; }, rows, columns, to, padded);
}

/// The block of keys, or of values, from a place in the sequence on.
bool copy_keys(const AttentionShape& shape, const bfloat16* from, std::int64_t stride, int first,
               bfloat16* to, int padded) {
  return copy_block([&](int r) { return from + shape.zigzag.row(first + r) * stride; },
                    shape.seq_len - first, shape.head_dim, to, padded);
}

inline void store_lanes(const Lanes& from, float* to) { std::memcpy(to, &from, sizeof from); }

inline Lanes every(float value) { return value - Lanes{}; }

// With a mask GCC does not warn of what its own headers leave open.
constexpr __mmask16 all_lanes = 0xffff;
constexpr __mmask32 all_halves = 0xffffffff;

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
void store_transposed(const float* x, std::int64_t stride, const float* factors, int rows,
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

// --- forward -------------------------------------------------------------------------------------

/// Streaming softmax of 16 queries.
struct Running {
  Lanes top = every(std::numeric_limits<float>::lowest()), sum{};
};

/// scores [keys, 32] of 16 queries -> tiles of pairs of exp(scores - top); `out` [columns, 32] so
/// far is scaled to the new top.
BRUME_WITH_TILES void softmax_columns(const AttentionShape& shape, const Sight& sight,
                                      int first_query, int first_key, int keys, bool hides,
                                      float* scores, float* out, int columns, Running& running,
                                      bfloat16* pairs) {
  const Lanes hidden = every(-std::numeric_limits<float>::infinity());
  Lanes scale = every(shape.score_scale());
  if (shape.cap > 0.0f) {
    for (int r = 0; r < keys; ++r) {
      float* const row = scores + r * side;
      store_lanes(capped(wide_lanes(row) * scale, shape.cap), row);
    }
    scale = every(1.0f);
  }
  if (hides) {
    const Seen seen(sight, first_query);
    for (int r = 0; r < keys; ++r) {
      float* const row = scores + r * side;
      store_lanes(seen.of(first_key + r, wide_lanes(row), hidden), row);
    }
  }
  constexpr int together = 4;  // else each step waits for the last
  Lanes highest[together];
  for (int i = 0; i < together; ++i) highest[i] = wide_lanes(scores + i * side);
  for (int r = together; r < keys; r += together)
#pragma GCC unroll 4
    for (int i = 0; i < together; ++i)
      highest[i] = larger(highest[i], wide_lanes(scores + (r + i) * side));
  const Lanes here = larger(larger(highest[0], highest[1]), larger(highest[2], highest[3]));
  const Lanes top = larger(here * scale, running.top);
  Lanes sum{};
  for (int r = 0; r < keys; r += 2) {
    const float* const row = scores + r * side;
    const Lanes even = exponentials(wide_lanes(row) * scale - top),
                odd = exponentials(wide_lanes(row + side) * scale - top);
    sum += even + odd;
    store_pairs(even, odd, pairs + r / side * tile_elements + r % side * tile_rows);
  }
  const Lanes shrink = exponentials(running.top - top);
  running.sum = running.sum * shrink + sum;
  running.top = top;
  if (_mm512_cmpneq_ps_mask(__m512(shrink), __m512(every(1.0f))) == 0) return;
  for (int c = 0; c < columns; ++c) {
    float* const row = out + c * side;
    store_lanes(wide_lanes(row) * shrink, row);
  }
}

}  // namespace

bool forward_by_tiles(const AttentionShape& shape, const Head<const bfloat16>& in,
                      const float* sink, bfloat16* o, std::int64_t stride, float* lse) {
  const int T = shape.seq_len, D = shape.head_dim;
  const int tokens = int(round_up(T, side)), columns = int(round_up(D, side));
  const int steps = columns / tile_inner;
  thread_local Kept<bfloat16> kept_keys, kept_values, kept_rows, kept_pairs;
  thread_local Kept<float> kept_out;
  bfloat16* const keys = kept_keys.get(std::int64_t(tokens) * columns);      // [T, D]
  bfloat16* const values = kept_values.get(std::int64_t(tokens) * columns);  // [T / 32, D, 32]
  bfloat16* const rows = kept_rows.get(side * columns);
  bfloat16* const queries = kept_pairs.get(side * columns);  // [2, D / 32] tiles
  float* const out = kept_out.get(side * columns);           // [D, 32]
  const auto block_of = [&](const bfloat16* from, int first, bfloat16* to) {
    return copy_keys(shape, from, in.key_stride, first, to, columns);
  };
  for (int first = 0; first < tokens; first += side) {
    if (!block_of(in.k, first, keys + std::int64_t(first) * columns) ||
        !block_of(in.v, first, rows))
      return false;
    for (int d = 0; d < columns; d += tile_rows)
      transpose_rows(rows + d, columns, values + std::int64_t(first) * columns + d * side);
  }
  const Sight sight(shape, in.sequence);
  alignas(64) float scores[span * side];
  alignas(64) bfloat16 weights[2 * key_blocks * tile_elements];
  configure_tiles();
  bool finite = true;
  for (int row = 0, count = 0; finite && row < shape.queries(); row += count) {
    const int query = shape.zigzag.position(row);
    count = std::min(side, shape.run_end(query) - query);
    finite = copy_block(in.q + row * in.stride, in.stride, count, D, rows, columns);
    for (int half = 0; half < 2; ++half)
      for (int s = 0; s < steps; ++s)
        pair_columns(rows + half * tile_rows * columns + s * tile_inner, columns,
                     queries + (half * steps + s) * tile_elements);
    std::fill_n(out, side * columns, 0.0f);
    Running running[2];
    if (sink != nullptr) running[0] = running[1] = {.top = every(*sink), .sum = every(1.0f)};
    const int end = std::min(int(round_up(query + side, side)), tokens);
    for (int first = sight.first_key(query) / side * side; first < end; first += span) {
      const int seen = std::min(span, end - first);
      for (int k = 0; k < seen; k += side)
        multiply<Write::replace>(
            {keys + std::int64_t(first + k) * columns, columns, tile_rows * columns, tile_inner},
            {queries, steps * tile_elements, tile_elements}, first_bits(steps), scores + k * side,
            side);
      const bool hides = !sight.all(query, first, seen);
      for (int half = 0; half < 2; ++half)
        softmax_columns(shape, sight, query + half * tile_rows, first, seen, hides,
                        scores + half * lanes, out + half * lanes, columns, running[half],
                        weights + half * key_blocks * tile_elements);
      for (int d = 0; d < columns; d += side)
        multiply<Write::accumulate>({values + std::int64_t(first) * columns + d * side, side,
                                     tile_rows * side, columns * side},
                                    {weights, key_blocks * tile_elements, tile_elements},
                                    first_bits(seen / side), out + d * side, side);
    }
    for (int half = 0; half < 2; ++half) {
      const int n = row + half * tile_rows, rest = count - half * tile_rows;
      float shares[lanes];
      for (int j = 0; j < lanes; ++j) {
        shares[j] = 1.0f / running[half].sum[j];
        if (j < rest) lse[n + j] = running[half].top[j] + std::log(running[half].sum[j]);
      }
      for (int d = 0; rest > 0 && d < D; d += tile_rows)
        store_transposed(out + d * side + half * lanes, side, shares, rest, D - d,
                         o + n * stride + d, stride);
    }
  }
  release_tiles();
  return finite;
}

// --- backward ------------------------------------------------------------------------------------

/// A thread keeps these from one head to the next.
struct TiledBackward::Arrays {
  // T tokens; N queries, of which each run begins a block.
  Kept<bfloat16> keys, values;                 // [T, D]
  Kept<bfloat16> turned_keys;                  // [T / 32, D, 32]
  Kept<bfloat16> query_rows, gradient_rows;    // tiles [T / 32, D / 16] of pairs of rows
  Kept<bfloat16> query_pairs, gradient_pairs;  // tiles [T / 16, D / 32] of pairs of columns
  Kept<float> d_keys, d_values;                // [T, D]
  Kept<float> d_queries;                       // [T / 32, D, 32]
  Kept<float> means;                           // [T]
  Kept<bfloat16> rows;                         // [32, D]
};

namespace {

struct Spans {
  alignas(64) float scores[block_floats], d_p[block_floats];
  alignas(64) bfloat16 p[span * span], d_s[span * span];  ///< rows of keys
  alignas(64) bfloat16 d_s_pairs[span * span];            ///< tiles [query / 16, key / 32]
};

/// scores -> p = exp(scores - lse), d_p -> d_s = p (d_p - mean) scale of 32 keys and 32 queries, in
/// bf16, at the places of a span.
BRUME_WITH_TILES void softmax_backward(const AttentionShape& shape, const Sight& sight,
                                       int first_query, int first_key, bool hides, const float* lse,
                                       const float* means, Spans& spans, bfloat16* p, bfloat16* d_s,
                                       bfloat16* pairs) {
  const Lanes scale = every(shape.score_scale()), none{};
  Lanes log_sum[2], mean[2];
  for (int half = 0; half < 2; ++half) {
    log_sum[half] = wide_lanes(lse + half * lanes);
    mean[half] = wide_lanes(means + half * lanes);
  }
  for (int r = 0; r < side; r += 2) {
    Lanes weight[2][2], slope[2][2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i)
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const int place = (r + i) * side + half * lanes;
        Lanes score = wide_lanes(spans.scores + place) * scale;
        Lanes slow = scale;
        if (shape.cap > 0.0f) {
          score = capped(score, shape.cap);
          const Lanes share = score / shape.cap;
          slow = scale * (1.0f - share * share);
        }
        weight[i][half] = exponentials(score - log_sum[half]);
        slope[i][half] = weight[i][half] * (wide_lanes(spans.d_p + place) - mean[half]) * slow;
        if (hides) {
          const Seen seen(sight, first_query + half * tile_rows);
          weight[i][half] = seen.of(first_key + r + i, weight[i][half], none);
          slope[i][half] = seen.of(first_key + r + i, slope[i][half], none);
        }
      }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      store_rounded(weight[i][0], weight[i][1], p + (r + i) * span);
      store_rounded(slope[i][0], slope[i][1], d_s + (r + i) * span);
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half)
      store_pairs(slope[0][half], slope[1][half],
                  pairs + half * key_blocks * tile_elements + r * tile_rows);
  }
}

}  // namespace

TiledBackward::TiledBackward(const AttentionShape& shape, const Head<const bfloat16>& in)
    : shape_(shape),
      arrays_([]() -> Arrays& {
        thread_local Arrays arrays;
        return arrays;
      }()),
      finite_(true) {
  const int T = shape.seq_len, D = shape.head_dim;
  const int tokens = int(round_up(T, side)), columns = int(round_up(D, side));
  const std::int64_t elements = std::int64_t(tokens) * columns;
  bfloat16* const keys = arrays_.keys.get(elements);
  bfloat16* const values = arrays_.values.get(elements);
  bfloat16* const turned = arrays_.turned_keys.get(elements);
  for (int first = 0; first < tokens; first += side) {
    const std::int64_t at = std::int64_t(first) * columns;
    finite_ &= copy_keys(shape, in.k, in.key_stride, first, keys + at, columns);
    finite_ &= copy_keys(shape, in.v, in.key_stride, first, values + at, columns);
    for (int d = 0; d < columns; d += tile_rows)
      transpose_rows(keys + at + d, columns, turned + at + d * side);
  }
  std::fill_n(arrays_.d_keys.get(elements), elements, 0.0f);
  std::fill_n(arrays_.d_values.get(elements), elements, 0.0f);
}

bool TiledBackward::add_head(const Head<const bfloat16>& in, const HeadOutput& output,
                             bfloat16* d_q, std::int64_t stride) {
  if (!finite_) return false;
  const int run = shape_.run(), padded = int(round_up(run, side)), D = shape_.head_dim;
  const int runs = shape_.queries() / run, queries = runs * padded;
  const int tokens = int(round_up(shape_.seq_len, side)), columns = int(round_up(D, side));
  const int steps = columns / tile_inner, tiles = columns / tile_rows;
  const std::int64_t elements = std::int64_t(queries) * columns;
  bfloat16* const rows = arrays_.rows.get(side * columns);
  const auto pack = [&](const bfloat16* from, std::int64_t from_stride, bfloat16* of_rows,
                        bfloat16* of_columns) {
    bool finite = true;
    for (int first = 0; first < queries; first += side) {
      const int before = first / padded, within = first % padded;
      finite &= copy_block(from + (before * run + within) * from_stride, from_stride, run - within,
                           D, rows, columns);
      const std::int64_t at = std::int64_t(first) * columns;
      for (int t = 0; t < tiles; ++t)
        pair_rows(rows + t * tile_rows, columns, of_rows + at + t * tile_elements);
      for (int half = 0; half < 2; ++half)
        for (int s = 0; s < steps; ++s)
          pair_columns(rows + half * tile_rows * columns + s * tile_inner, columns,
                       of_columns + at + (half * steps + s) * tile_elements);
    }
    return finite;
  };
  bfloat16* const query_rows = arrays_.query_rows.get(elements);
  bfloat16* const query_pairs = arrays_.query_pairs.get(elements);
  bfloat16* const gradient_rows = arrays_.gradient_rows.get(elements);
  bfloat16* const gradient_pairs = arrays_.gradient_pairs.get(elements);
  if (!pack(in.q, in.stride, query_rows, query_pairs) ||
      !pack(output.d_o, output.d_o_stride, gradient_rows, gradient_pairs))
    return false;

  float* const means = arrays_.means.get(2 * queries);
  float* const lse = means + queries;
  for (int n = 0; n < queries; ++n) {
    const int row = n / padded * run + n % padded;
    const bool there = n % padded < run;
    const bfloat16* const o = output.o + row * output.o_stride;
    const bfloat16* const d_o = output.d_o + row * output.d_o_stride;
    means[n] = there ? sum_terms(D, [=](int d) { return o[d] * d_o[d]; }) : 0.0f;
    lse[n] = there ? output.lse[row] : 0.0f;
  }
  const bfloat16* const keys = arrays_.keys.get(0);
  const bfloat16* const values = arrays_.values.get(0);
  const bfloat16* const turned = arrays_.turned_keys.get(0);
  float* const d_keys = arrays_.d_keys.get(0);
  float* const d_values = arrays_.d_values.get(0);
  float* const d_queries = arrays_.d_queries.get(elements);
  std::fill_n(d_queries, elements, 0.0f);

  const Sight sight(shape_, in.sequence);
  thread_local Kept<Spans> kept_spans;
  Spans& spans = *kept_spans.get(1);
  configure_tiles();
  const auto add_spans = [&](int before, int begin, int first_key) {
    for (int first = std::max(first_key - begin, 0) / span * span; first < run; first += span) {
      if (sight.first_key(begin + first) >= first_key + span) break;  // as do all later ones
      const int first_row = before * padded + first;
      std::uint64_t queries_of[key_blocks] = {}, keys_of[query_sides] = {};
      for (int j = 0; j < query_sides; ++j) {
        const int query = begin + first + j * side, row = first_row + j * side;
        const std::int64_t at = std::int64_t(row) * columns;
        for (int i = 0; first + j * side < run && i < key_blocks; ++i) {
          const int key = first_key + i * side;
          if (key >= tokens || !sight.any(query, key, side)) continue;
          queries_of[i] |= first_bits(1) << j, keys_of[j] |= first_bits(1) << i;
          const std::int64_t key_at = std::int64_t(key) * columns;
          multiply<Write::replace>({keys + key_at, columns, tile_rows * columns, tile_inner},
                                   {query_pairs + at, steps * tile_elements, tile_elements},
                                   first_bits(steps), spans.scores, side);
          multiply<Write::replace>({values + key_at, columns, tile_rows * columns, tile_inner},
                                   {gradient_pairs + at, steps * tile_elements, tile_elements},
                                   first_bits(steps), spans.d_p, side);
          const int place = i * side * span + j * side;
          softmax_backward(shape_, sight, query, key, !sight.all(query, key, side), lse + row,
                           means + row, spans, spans.p + place, spans.d_s + place,
                           spans.d_s_pairs + (j * 2 * key_blocks + i) * tile_elements);
        }
      }
      const std::int64_t at = std::int64_t(first_row) * columns;
      for (int i = 0; i < key_blocks; ++i)
        for (int t = 0; queries_of[i] != 0 && t < tiles; t += 2) {
          const std::int64_t place = std::int64_t(first_key + i * side) * columns + t * tile_rows;
          const std::int64_t tile = at + t * tile_elements;
          multiply<Write::accumulate>({spans.p + i * side * span, span, tile_rows * span, side},
                                      {gradient_rows + tile, tile_elements, side * columns},
                                      queries_of[i], d_values + place, columns);
          multiply<Write::accumulate>({spans.d_s + i * side * span, span, tile_rows * span, side},
                                      {query_rows + tile, tile_elements, side * columns},
                                      queries_of[i], d_keys + place, columns);
        }
      for (int j = 0; j < query_sides; ++j)
        for (int d = 0; keys_of[j] != 0 && d < columns; d += side)
          multiply<Write::accumulate>(
              {turned + std::int64_t(first_key) * columns + d * side, side, tile_rows * side,
               side * columns},
              {spans.d_s_pairs + j * 2 * key_blocks * tile_elements, key_blocks * tile_elements,
               tile_elements},
              keys_of[j], d_queries + at + (std::int64_t(j) * columns + d) * side, side);
    }
  };
  for (int before = 0; before < runs; ++before)
    for (int first_key = 0; first_key < tokens; first_key += span)
      add_spans(before, shape_.zigzag.position(before * run), first_key);
  release_tiles();

  float ones[lanes];
  std::fill_n(ones, lanes, 1.0f);
  for (int n = 0; n < queries; n += tile_rows)
    for (int d = 0; n % padded < run && d < D; d += tile_rows)
      store_transposed(d_queries + (std::int64_t(n / side) * columns + d) * side + n % side, side,
                       ones, run - n % padded, D - d,
                       d_q + (n / padded * run + n % padded) * stride + d, stride);
  return true;
}

void TiledBackward::store(const Head<bfloat16>& grad) const {
  const int run = shape_.run(), D = shape_.head_dim, columns = int(round_up(D, side));
  for (int first = 0; first < shape_.seq_len; first += run) {
    const std::int64_t from = std::int64_t(first) * columns, row = shape_.zigzag.row(first);
    copy_rows(arrays_.d_keys.get(0) + from, columns, run, D, grad.k + row * grad.key_stride,
              grad.key_stride);
    copy_rows(arrays_.d_values.get(0) + from, columns, run, D, grad.v + row * grad.key_stride,
              grad.key_stride);
  }
}

}  // namespace brume::kernels

#else

namespace brume::kernels {

struct TiledBackward::Arrays {};

bool forward_by_tiles(const AttentionShape&, const Head<const bfloat16>&, const float*, bfloat16*,
                      std::int64_t, float*) {
  return false;
}
TiledBackward::TiledBackward(const AttentionShape& shape, const Head<const bfloat16>&)
    : shape_(shape),
      arrays_([]() -> Arrays& {
        static Arrays none;
        return none;
      }()),
      finite_(false) {}
bool TiledBackward::add_head(const Head<const bfloat16>&, const HeadOutput&, bfloat16*,
                             std::int64_t) {
  return false;
}
void TiledBackward::store(const Head<bfloat16>&) const {}

}  // namespace brume::kernels

#endif
