/// @file Products of bf16 by the processor's tile registers (AMX), from packed copies of both
/// factors.
#include <algorithm>
#include <array>

#include "kernels/host/gemm.hpp"
#include "kernels/host/loops.hpp"
#include "kernels/host/tiles.hpp"

#ifdef __x86_64__

namespace brume::kernels {
namespace {

// A piece of each factor is packed into tiles, 4 and 2 MiB, which all threads read; the sums of its
// result, 8 MiB, are rounded once. A unit of work is a part of the result whose factors stay in L2.
constexpr std::int64_t piece_rows = 2048, piece_columns = 1024, piece_inner = 1024;
constexpr std::int64_t unit_rows = 256, unit_columns = 128;

/// Elements [row, row + 32) x [column, column + 32) of a matrix: in place, or a copy with zeros
/// behind its last row or column.
struct Block {
  alignas(64) bfloat16 copy[side * side];
  const bfloat16* data;
  std::int64_t stride;

  Block(const bfloat16* from, std::int64_t from_stride, std::int64_t rows, std::int64_t columns)
      : data(from), stride(from_stride) {
    if (rows >= side && columns >= side) return;
    std::fill_n(copy, side * side, bfloat16(0.0f));
    for (std::int64_t r = 0; r < std::min<std::int64_t>(rows, side); ++r)
      std::copy_n(from + r * from_stride, std::min<std::int64_t>(columns, side), copy + r * side);
    data = copy, stride = side;
  }
};

/// op(A) [rows, inner] as tiles [rows / 16, inner / 32] of rows.
void pack_left(const FactorOf<bfloat16>& a, std::int64_t rows, std::int64_t inner,
               bfloat16* tiles) {
  const std::int64_t steps = ceil_div(inner, tile_inner);
  for_each("pack_left", ceil_div(rows, side), [=](std::int64_t panel) {
    const std::int64_t row = panel * side;
    for (std::int64_t s = 0; s < steps; ++s) {
      const std::int64_t column = s * tile_inner;
      bfloat16* const to = tiles + (2 * panel * steps + s) * tile_elements;
      if (a.transpose == Transpose::yes) {
        const Block block(a.data + column * a.stride + row, a.stride, inner - column, rows - row);
        for (int half = 0; half < 2; ++half)
          transpose_rows(block.data + half * tile_rows, block.stride,
                         to + half * steps * tile_elements);
      } else {
        const Block block(a.data + row * a.stride + column, a.stride, rows - row, inner - column);
        for (int r = 0; r < side; ++r)
          std::memcpy(to + r / tile_rows * steps * tile_elements + r % tile_rows * tile_inner,
                      block.data + r * block.stride, tile_inner * sizeof(bfloat16));
      }
    }
  });
}

/// op(B) [inner, columns] as tiles [columns / 16, inner / 32] of pairs.
void pack_right(const FactorOf<bfloat16>& b, std::int64_t inner, std::int64_t columns,
                bfloat16* tiles) {
  const std::int64_t steps = ceil_div(inner, tile_inner);
  for_each("pack_right", ceil_div(columns, side), [=](std::int64_t panel) {
    const std::int64_t column = panel * side;
    for (std::int64_t s = 0; s < steps; ++s) {
      const std::int64_t row = s * tile_inner;
      bfloat16* const to = tiles + (2 * panel * steps + s) * tile_elements;
      if (b.transpose == Transpose::yes) {
        const Block block(b.data + column * b.stride + row, b.stride, columns - column,
                          inner - row);
        for (int half = 0; half < 2; ++half)
          pair_columns(block.data + half * tile_rows * block.stride, block.stride,
                       to + half * steps * tile_elements);
      } else {
        const Block block(b.data + row * b.stride + column, b.stride, inner - row,
                          columns - column);
        for (int half = 0; half < 2; ++half)
          pair_rows(block.data + half * tile_rows, block.stride, to + half * steps * tile_elements);
      }
    }
  });
}

/// sums [rows, columns] of a unit = left right, or += in a later piece of the inner numbers.
template <Write write>
BRUME_WITH_TILES void multiply_unit(const bfloat16* left, const bfloat16* right, int steps,
                                    std::int64_t rows, std::int64_t columns, float* sums,
                                    std::int64_t stride) {
  const std::int64_t half = std::int64_t(steps) * tile_elements;
  for (std::int64_t column = 0; column < columns; column += side)
    for (std::int64_t row = 0; row < rows; row += side) {
      const bfloat16* const next =
          row + side < rows ? left + (row + side) / tile_rows * half : left;
      multiply<write>({left + row / tile_rows * half, tile_inner, half, tile_elements, next},
                      {right + column / tile_rows * half, half, tile_elements}, first_bits(steps),
                      sums + row * stride + column, stride);
    }
}

/// C = sums (+ C when accumulating) (+ row in each row)
template <class Result>
void store_sums(const float* sums, std::int64_t sums_stride, std::int64_t rows,
                std::int64_t columns, Write write, const Result* row, Result* c,
                std::int64_t stride) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* const from = sums + r * sums_stride;
    Result* const to = c + r * stride;
    if (row != nullptr && write == Write::accumulate) {
#pragma omp simd
      for (std::int64_t j = 0; j < columns; ++j) to[j] = from[j] + float(to[j]) + float(row[j]);
    } else if (row != nullptr) {
#pragma omp simd
      for (std::int64_t j = 0; j < columns; ++j) to[j] = from[j] + float(row[j]);
    } else if (write == Write::accumulate) {
#pragma omp simd
      for (std::int64_t j = 0; j < columns; ++j) to[j] = from[j] + float(to[j]);
    } else {
#pragma omp simd
      for (std::int64_t j = 0; j < columns; ++j) to[j] = from[j];
    }
  }
}

}  // namespace

bool has_blocks(std::int64_t m, std::int64_t n, std::int64_t k) {
  return has_tile_registers() && std::min({m, n, k}) >= side;
}

template <class Result>
void gemm_blocks(std::int64_t m, std::int64_t n, std::int64_t k, const FactorOf<bfloat16>& a,
                 const FactorOf<bfloat16>& b, Write write, Result* c, std::int64_t stride,
                 const Result* row) {
  thread_local Kept<bfloat16> kept_left, kept_right;
  thread_local Kept<float> kept_sums;
  const auto part = [](const FactorOf<bfloat16>& factor, std::int64_t i, std::int64_t j) {
    if (factor.transpose == Transpose::yes) std::swap(i, j);
    return FactorOf<bfloat16>{factor.data + i * factor.stride + j, factor.stride, factor.transpose};
  };
  for (std::int64_t i = 0; i < m; i += piece_rows)
    for (std::int64_t j = 0; j < n; j += piece_columns) {
      const std::int64_t rows = std::min(piece_rows, m - i),
                         columns = std::min(piece_columns, n - j);
      const std::int64_t sums_stride = round_up(columns, side);
      float* const sums = kept_sums.get(round_up(rows, side) * sums_stride);
      for (std::int64_t p = 0; p < k; p += piece_inner) {
        const std::int64_t inner = std::min(piece_inner, k - p);
        const std::int64_t steps = ceil_div(inner, tile_inner);
        bfloat16* const left = kept_left.get(round_up(rows, side) * steps * tile_inner);
        bfloat16* const right = kept_right.get(sums_stride * steps * tile_inner);
        if (k > piece_inner || j == 0) pack_left(part(a, i, p), rows, inner, left);
        pack_right(part(b, p, j), inner, columns, right);
        const bool last = p + inner == k;
        const std::int64_t across = ceil_div(columns, unit_columns);
        for_each("gemm_blocks", ceil_div(rows, unit_rows) * across, [=](std::int64_t unit) {
          const std::int64_t first_row = unit / across * unit_rows,
                             first_column = unit % across * unit_columns;
          const std::int64_t unit_height = std::min(unit_rows, rows - first_row),
                             unit_width = std::min(unit_columns, columns - first_column);
          float* const here = sums + first_row * sums_stride + first_column;
          configure_tiles();
          (p > 0 ? multiply_unit<Write::accumulate>
                 : multiply_unit<Write::replace>)(left + first_row * steps * tile_inner,
                                                  right + first_column * steps * tile_inner,
                                                  int(steps), unit_height, unit_width, here,
                                                  sums_stride);
          release_tiles();
          if (last)
            store_sums(here, sums_stride, unit_height, unit_width, write,
                       row != nullptr ? row + j + first_column : nullptr,
                       c + (i + first_row) * stride + j + first_column, stride);
        });
      }
    }
}

#else

namespace brume::kernels {

bool has_blocks(std::int64_t, std::int64_t, std::int64_t) { return false; }

template <class Result>
void gemm_blocks(std::int64_t, std::int64_t, std::int64_t, const FactorOf<bfloat16>&,
                 const FactorOf<bfloat16>&, Write, Result*, std::int64_t, const Result*) {}

#endif

template void gemm_blocks(std::int64_t, std::int64_t, std::int64_t, const FactorOf<bfloat16>&,
                          const FactorOf<bfloat16>&, Write, float*, std::int64_t, const float*);
template void gemm_blocks(std::int64_t, std::int64_t, std::int64_t, const FactorOf<bfloat16>&,
                          const FactorOf<bfloat16>&, Write, bfloat16*, std::int64_t,
                          const bfloat16*);

}  // namespace brume::kernels
