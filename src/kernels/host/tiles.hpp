/// @file The processor's tile registers (AMX), which multiply bf16 and sum in fp32.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <oneapi/dnnl/dnnl.h>

#include "kernels/host/loops.hpp"

namespace brume::kernels {

/// Whether the processor has them. oneDNN asks the system for them, and may be told to do without.
inline bool has_tile_registers() {
#ifdef __x86_64__
  static const bool has =
      (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_amx) == dnnl_cpu_isa_avx512_core_amx;
  return has;
#else
  return false;
#endif
}

}  // namespace brume::kernels

#ifdef __x86_64__

#include <immintrin.h>

#define BRUME_WITH_TILES \
  __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512bf16")))

namespace brume::kernels {

// A tile has 16 rows of 64 bytes.
constexpr int tile_rows = 16;
constexpr int tile_inner = 32;  // elements of a row
constexpr int tile_floats = tile_rows * tile_rows;
constexpr int tile_elements = tile_rows * tile_inner;
constexpr int side = 2 * tile_rows;  // of a block of two by two tiles

/// Memory of the calling thread that begins with a cache line.
template <class Value>
class Kept {
 public:
  Value* get(std::int64_t count) {
    const std::int64_t lines = ceil_div(count * std::int64_t(sizeof(Value)), sizeof(Line));
    if (std::int64_t(lines_.size()) < lines) lines_.resize(std::size_t(lines));
    return reinterpret_cast<Value*>(lines_.data());
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> lines_;
};

struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

__attribute__((target("amx-tile"))) inline void configure_tiles() {
  TileConfig config;
  std::fill_n(config.row_bytes, 8, std::uint16_t{64});
  std::fill_n(config.rows, 8, std::uint8_t{tile_rows});
  _tile_loadconfig(&config);
}

__attribute__((target("amx-tile"))) inline void release_tiles() { _tile_release(); }

/// Swaps bit `step` of the row and of the column of each number in a tile.
template <int step>
[[gnu::always_inline]] inline void swap_bit(Lanes (&rows)[tile_rows]) {
  using Places = std::int32_t __attribute__((vector_size(64)));
  Places low{}, high{};
  for (int j = 0; j < lanes; ++j) {
    low[j] = (j & step) == 0 ? j : lanes + j - step;
    high[j] = (j & step) == 0 ? j + step : lanes + j;
  }
#pragma GCC unroll 16
  for (int i = 0; i < tile_rows; ++i) {
    if ((i & step) != 0) continue;
    const Lanes a = rows[i], b = rows[i + step];
    rows[i] = __builtin_shuffle(a, b, low);
    rows[i + step] = __builtin_shuffle(a, b, high);
  }
}

/// The rows of `from`, `stride` floats apart, become columns of `to`, whose rows are 16 floats.
inline void transpose_tile(const float* from, std::int64_t stride, float* to) {
  Lanes rows[tile_rows];
  for (int i = 0; i < tile_rows; ++i) std::memcpy(&rows[i], from + i * stride, sizeof rows[i]);
  swap_bit<1>(rows), swap_bit<2>(rows), swap_bit<4>(rows), swap_bit<8>(rows);
  std::memcpy(to, rows, sizeof rows);
}

/// tile[i][j] = the pair x[2 i][j], x[2 i + 1][j] of 32 rows and 16 columns.
inline void pair_rows(const bfloat16* x, std::int64_t stride, bfloat16* tile) {
  for (int i = 0; i < tile_rows; ++i, x += 2 * stride, tile += tile_inner) {
    std::uint32_t pairs[tile_rows];
#pragma omp simd
    for (int j = 0; j < tile_rows; ++j)
      pairs[j] = std::uint32_t(x[j].bits) | std::uint32_t(x[stride + j].bits) << 16;
    std::memcpy(tile, pairs, sizeof pairs);
  }
}

/// tile[i][j] = the pair x[j][2 i], x[j][2 i + 1] of 16 rows and 32 columns.
inline void pair_columns(const bfloat16* x, std::int64_t stride, bfloat16* tile) {
  for (int i = 0; i < tile_rows; ++i)  // rows may begin within a pair
    std::memcpy(tile + i * tile_inner, x + i * stride, tile_inner * sizeof(bfloat16));
  transpose_tile(reinterpret_cast<const float*>(tile), tile_rows, reinterpret_cast<float*>(tile));
}

/// to[c][r] = x[r][c] of 32 rows and 16 columns.
inline void transpose_rows(const bfloat16* x, std::int64_t stride, bfloat16* to) {
  alignas(64) bfloat16 tile[tile_elements];
  pair_rows(x, stride, tile);
  transpose_tile(reinterpret_cast<const float*>(tile), tile_rows, reinterpret_cast<float*>(to));
}

/// 32 rows of a left factor, `stride` elements apart: the second 16 lie `half` behind the first
/// ones, the next 32 columns lie `step` behind these.
struct Left {
  const bfloat16* data;
  std::int64_t stride, half, step;
  const bfloat16* next = nullptr;  ///< rows of the same layout that come then; null: unknown
};

/// Tiles of 32 columns of a right factor: the second 16 lie `half` behind the first ones.
struct Right {
  const bfloat16* data;
  std::int64_t half, step;
};

/// c = a b, or c += a b, of the inner 32 numbers whose bits are set.
template <Write write>
BRUME_WITH_TILES inline void multiply(const Left& a, const Right& b, std::uint64_t steps, float* c,
                                      std::int64_t stride) {
  const std::int64_t bytes = stride * std::int64_t(sizeof(float));
  float* const below = c + tile_rows * stride;
  if constexpr (write == Write::accumulate) {
    _tile_loadd(0, c, bytes);
    _tile_loadd(1, c + tile_rows, bytes);
    _tile_loadd(2, below, bytes);
    _tile_loadd(3, below + tile_rows, bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const std::int64_t a_bytes = a.stride * std::int64_t(sizeof(bfloat16));
  const int count = std::bit_width(steps);
  for (int s = 0; s < count; ++s) {
    if ((steps >> s & 1u) == 0) continue;
    const bfloat16* const left = a.data + s * a.step;
    if (a.next != nullptr) {
      constexpr int ahead = 4;  // steps that tiles come to the cache before they are read
      const int then = s + ahead < count ? s + ahead : s + ahead - count;
      const bfloat16* const coming = (s + ahead < count ? a.data : a.next) + then * a.step;
      for (int r = 0; r < tile_rows; ++r) {
        _mm_prefetch(reinterpret_cast<const char*>(coming + r * a.stride), _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(coming + a.half + r * a.stride), _MM_HINT_T0);
      }
    }
    const bfloat16* const right = b.data + s * b.step;
    _tile_loadd(4, left, a_bytes);
    _tile_loadd(6, right, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, right + b.half, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, left + a.half, a_bytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, bytes);
  _tile_stored(1, c + tile_rows, bytes);
  _tile_stored(2, below, bytes);
  _tile_stored(3, below + tile_rows, bytes);
}

constexpr std::uint64_t first_bits(int count) { return (std::uint64_t{1} << count) - 1u; }

}  // namespace brume::kernels

#endif
