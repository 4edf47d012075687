/// @file Attention's forward by products of tiles, on processors that have them.
#include <cmath>

#include "kernels/host/attention_tiles.hpp"

#ifdef __x86_64__

namespace brume::kernels {
namespace {

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

}  // namespace brume::kernels

#else

namespace brume::kernels {

bool forward_by_tiles(const AttentionShape&, const Head<const bfloat16>&, const float*, bfloat16*,
                      std::int64_t, float*) {
  return false;
}

}  // namespace brume::kernels

#endif
