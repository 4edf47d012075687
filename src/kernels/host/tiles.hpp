/// @file The processor's tile registers (AMX), which multiply bf16 and sum in fp32.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

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

}  // namespace brume::kernels

#endif
