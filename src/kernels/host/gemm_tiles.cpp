/// @file Products of bf16 by the processor's tile registers (AMX), which read weights as they are
/// stored.
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/host/gemm.hpp"
#include "kernels/host/loops.hpp"
#include "kernels/host/quantized_blocks.hpp"
#include "kernels/host/quantized_vectors.hpp"
#include "kernels/host/tiles.hpp"

#ifdef __x86_64__

namespace brume::kernels {
namespace {

// Tiles of B hold 16 of its rows, which are columns of the result; a tile of A holds pairs of
// elements of 16 of its rows, the elements of a pair of places side by side. Their product is a
// tile of the result's transpose.
constexpr int tile_columns = 2 * tile_rows;  // of the result that a block has
constexpr int block_floats = 4 * tile_floats;

/// 32 rows of B in memory, `stride` elements apart.
struct StoredRows {
  const bfloat16* b;
  const bfloat16* then;  ///< the 32 rows that are read next; b: these again
  std::int64_t stride, inner;

  /// Elements from `i` on of all rows, which stay till the next call.
  BRUME_WITH_TILES const bfloat16* at(std::int64_t i) const {
    constexpr int ahead = 8 * tile_inner;  // elements that come to the cache before they are read
    const bfloat16* const coming = i + ahead < inner ? b + i + ahead : then + i + ahead - inner;
    for (int r = 0; r < tile_columns; ++r)
      _mm_prefetch(reinterpret_cast<const char*>(coming + r * stride), _MM_HINT_T0);
    return b + i;
  }
};

/// 32 rows of quantized blocks. The next block of each row is made while this one is multiplied:
/// tiles wait for values that were just written.
struct BlockRows {
  Quantization format;
  const std::byte* blocks;
  std::int64_t inner;
  bfloat16* made;  ///< [2, 32, 64]
  static constexpr std::int64_t stride = quantized_block;

  BRUME_WITH_TILES const bfloat16* at(std::int64_t i) const {
    const std::int64_t within = i % quantized_block, block = i / quantized_block;
    if (i == 0) make(0);
    if (within == 0 && i + quantized_block < inner) make(block + 1);
    return place(block) + within;
  }

 private:
  bfloat16* place(std::int64_t block) const { return made + block % 2 * tile_columns * stride; }

  BRUME_WITH_TILES void make(std::int64_t index) const {
    constexpr int ahead = 4;  // blocks
    const std::int64_t bytes = block_bytes(format), row_bytes = inner / quantized_block * bytes;
    const std::byte* block = blocks + index * bytes;
    bfloat16* out = place(index);
    for (int r = 0; r < tile_columns; ++r, block += row_bytes, out += stride) {
      _mm_prefetch(reinterpret_cast<const char*>(block + ahead * bytes), _MM_HINT_T0);
      format == Quantization::nf4 ? dequantize_nf4(block, out) : dequantize_int8(block, out);
    }
  }
};

/// out = tiles of the result's transpose: 16 rows by 32 columns, and as many of the next rows.
///
/// @param a     pairs of 16 rows
/// @param next  of the 16 rows behind them; null: there are none
/// @param rows  StoredRows or BlockRows: 32 rows of B
template <class Rows>
BRUME_WITH_TILES void multiply_tiles(const bfloat16* a, const bfloat16* next, const Rows& rows,
                                     float* out) {
  const std::int64_t stride = rows.stride;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (std::int64_t i = 0; i < rows.inner; i += tile_inner) {
    const bfloat16* const b = rows.at(i);
    _tile_loadd(4, b, stride * 2);
    _tile_loadd(6, a + i * tile_rows, 64);
    _tile_loadd(5, b + tile_rows * stride, stride * 2);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 5, 6);
    if (next == nullptr) continue;
    _tile_loadd(7, next + i * tile_rows, 64);
    _tile_dpbf16ps(2, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, out, 64);
  _tile_stored(1, out + tile_floats, 64);
  if (next == nullptr) return;
  _tile_stored(2, out + 2 * tile_floats, 64);
  _tile_stored(3, out + 3 * tile_floats, 64);
}

/// Pairs of elements of each 16 rows; zeros where rows end.
std::vector<bfloat16> in_pairs(std::int64_t m, std::int64_t k, const FactorOf<bfloat16>& a) {
  const std::int64_t blocks = ceil_div(m, tile_rows);
  std::vector<bfloat16> pairs(std::size_t(blocks * tile_rows * k), bfloat16(0.0f));
  // A thread writes whole cache lines. A few rows take one thread less time than waking another.
  for_each("gemm_tiles", blocks, [&](std::int64_t block) {
    const std::int64_t first = block * tile_rows, rows = std::min(m - first, tile_rows + 0L);
    const bfloat16* const from = a.data + first * a.stride;
    bfloat16* const to = pairs.data() + first * k;
    for (std::int64_t i = 0; i < k; i += 2)
      for (std::int64_t row = 0; row < rows; ++row)
        std::memcpy(to + i * tile_rows + 2 * row, from + row * a.stride + i, 2 * sizeof(bfloat16));
  });
  return pairs;
}

/// 32 rows of B from `first` on: in place, or a copy with zeros behind the last one.
FactorOf<bfloat16> rows_of(const FactorOf<bfloat16>& b, std::int64_t first, std::int64_t n,
                           std::int64_t k, std::vector<bfloat16>& copy) {
  if (first + tile_columns <= n) return {b.data + first * b.stride, b.stride};
  copy.assign(std::size_t(tile_columns * k), bfloat16(0.0f));
  for (std::int64_t row = first; row < n; ++row)
    std::copy_n(b.data + row * b.stride, k, copy.data() + (row - first) * k);
  return {copy.data(), k};
}

/// each(row, rows): for rows [row, row + 32) of A, with the 32 rows of B from `first` on; zeros
/// follow the last row of B.
template <class Each>
void with_rows(std::int64_t m, std::int64_t n, std::int64_t k, const FactorOf<bfloat16>& b,
               std::int64_t first, const Each& each) {
  std::vector<bfloat16> copy;
  const FactorOf<bfloat16> rows = rows_of(b, first, n, k, copy);
  for (std::int64_t row = 0; row < m; row += 2 * tile_rows) {
    const bool last = row + 2 * tile_rows >= m && first + 2 * tile_columns <= n;
    each(row, StoredRows{rows.data, last ? rows.data + tile_columns * rows.stride : rows.data,
                         rows.stride, k});
  }
}
/// Rows of blocks are made once for all rows of A, and all at a time if A has more than 32.
template <class Each>
void with_rows(std::int64_t m, std::int64_t n, std::int64_t k, const QuantizedFactor& b,
               std::int64_t first, const Each& each) {
  const std::int64_t count = std::min(n - first, tile_columns + 0L);
  if (m <= 2 * tile_rows && count == tile_columns) {
    alignas(64) bfloat16 made[2 * tile_columns * quantized_block];
    return each(0, BlockRows{b.format, rows_of(b, k, first), k, made});
  }
  thread_local std::vector<bfloat16> copy;
  copy.assign(std::size_t(tile_columns * k), bfloat16(0.0f));
  dequantize_blocks(b.format, rows_of(b, k, first), count * k / quantized_block, copy.data());
  for (std::int64_t row = 0; row < m; row += 2 * tile_rows)
    each(row, StoredRows{copy.data(), copy.data(), k, k});
}

}  // namespace

bool has_tiles(std::int64_t m, std::int64_t k) {
  constexpr std::int64_t most_rows = 256;  // beyond, oneDNN's copy of B costs little
  return has_tile_registers() && m <= most_rows && k % tile_inner == 0;
}

template <class FactorB, class Result>
void gemm_tiles(std::int64_t m, std::int64_t n, std::int64_t k, const FactorOf<bfloat16>& a,
                const FactorB& b, Write write, Result* c, std::int64_t stride) {
  const std::vector<bfloat16> pairs = in_pairs(m, k, a);
  const bool adds = write == Write::accumulate;
  for_each("gemm_tiles", ceil_div(n, tile_columns), [&](std::int64_t block) {
    alignas(64) float out[block_floats];
    const std::int64_t first = block * tile_columns, count = std::min(n - first, tile_columns + 0L);
    configure_tiles();
    with_rows(m, n, k, b, first, [&](std::int64_t row, const auto& rows) {
      const bfloat16* const from = pairs.data() + row * k;
      const bool two = row + tile_rows < m;
      multiply_tiles(from, two ? from + tile_rows * k : nullptr, rows, out);
      for (int tile = 0; tile < (two ? 4 : 2); ++tile)
        transpose_tile(out + tile * tile_floats, lanes, out + tile * tile_floats);
      for (std::int64_t r = 0; r < std::min<std::int64_t>(2 * tile_rows, m - row); ++r) {
        Result* const to = c + (row + r) * stride + first;
        const float* const sums = out + r / tile_rows * 2 * tile_floats + r % tile_rows * lanes;
        for (int half = 0; half < 2; ++half)
#pragma omp simd
          for (int j = 0; j < std::clamp<int>(int(count) - half * lanes, 0, lanes); ++j) {
            const float sum = sums[half * tile_floats + j];
            Result& at = to[half * lanes + j];
            at = adds ? float(at) + sum : sum;
          }
      }
    });
    release_tiles();
  });
}

#else

namespace brume::kernels {

bool has_tiles(std::int64_t, std::int64_t) { return false; }

template <class FactorB, class Result>
void gemm_tiles(std::int64_t, std::int64_t, std::int64_t, const FactorOf<bfloat16>&, const FactorB&,
                Write, Result*, std::int64_t) {}

#endif

template void gemm_tiles(std::int64_t, std::int64_t, std::int64_t, const FactorOf<bfloat16>&,
                         const FactorOf<bfloat16>&, Write, float*, std::int64_t);
template void gemm_tiles(std::int64_t, std::int64_t, std::int64_t, const FactorOf<bfloat16>&,
                         const FactorOf<bfloat16>&, Write, bfloat16*, std::int64_t);
template void gemm_tiles(std::int64_t, std::int64_t, std::int64_t, const FactorOf<bfloat16>&,
                         const QuantizedFactor&, Write, bfloat16*, std::int64_t);

}  // namespace brume::kernels
