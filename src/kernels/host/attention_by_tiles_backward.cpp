/// @file Attention's backward by products of tiles, on processors that have them.
#include <cmath>

#include "kernels/host/attention_tiles.hpp"

#ifdef __x86_64__

namespace brume::kernels {

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
