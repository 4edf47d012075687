/// @file Products of few rows, each sum in an order that neither the other rows nor the number of
/// threads change.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/host/loops.hpp"

namespace brume::kernels {

/// Most rows for which reading the weights, not computing, limits a product.
inline constexpr int few_rows = 4;

/// Lanes of elements as floats.
inline Lanes wide_lanes(const float* from) {
  Lanes out;
  std::memcpy(&out, from, sizeof out);
  return out;
}
inline Lanes wide_lanes(const bfloat16* from) {
  using Halves = std::uint16_t __attribute__((vector_size(2 * lanes)));
  using Words = std::uint32_t __attribute__((vector_size(4 * lanes)));
  Halves bits;
  std::memcpy(&bits, from, sizeof bits);
  return std::bit_cast<Lanes>(__builtin_convertvector(bits, Words) << 16);
}
inline Lanes wide_lanes(const float16* from) {
  float out[lanes];
#pragma omp simd
  for (int j = 0; j < lanes; ++j) out[j] = from[j];
  return wide_lanes(out);
}

/// The first `count` of them, zeros behind these.
template <class Storage>
inline Lanes first_lanes(const Storage* from, std::int64_t count) {
  float out[lanes] = {};
  for (std::int64_t j = 0; j < count; ++j) out[j] = from[j];
  return wide_lanes(out);
}

inline float sum_of(const Lanes& terms) {
  float halves[lanes];
  std::memcpy(halves, &terms, sizeof halves);
  for (int half = lanes / 2; half > 0; half /= 2)
    for (int j = 0; j < half; ++j) halves[j] += halves[j + half];
  return halves[0];
}

/// store(r, c, sum_i a[r,i] b[c,i]) for `rows` rows of a and `columns` rows of b.
template <int rows, int columns, class Storage, class Store>
inline void dot_block(const float* a, std::int64_t a_stride, const Storage* b,
                      std::int64_t b_stride, std::int64_t count, const Store& store) {
  Lanes sums[rows][columns] = {};
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    Lanes x[rows];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) x[r] = wide_lanes(a + r * a_stride + i);
#pragma GCC unroll 8
    for (int c = 0; c < columns; ++c) {
      const Lanes w = wide_lanes(b + c * b_stride + i);
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) sums[r][c] += x[r] * w;
    }
  }
  // Indices that are known keep the sums in registers.
  const std::int64_t left = count - i;
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < columns; ++c)
      if (left > 0)
        sums[r][c] +=
            first_lanes(a + r * a_stride + i, left) * first_lanes(b + c * b_stride + i, left);
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < columns; ++c) store(r, c, sum_of(sums[r][c]));
}

/// The same for any number of rows of a, against `columns` rows of b.
template <int columns, class Storage, class Store>
inline void dot_rows(int rows, const float* a, std::int64_t a_stride, const Storage* b,
                     std::int64_t b_stride, std::int64_t count, const Store& store) {
  int r = 0;
  const auto behind = [&](int done) {
    return [&store, done](int row, int column, float sum) { store(done + row, column, sum); };
  };
  for (; r + 4 <= rows; r += 4)
    dot_block<4, columns>(a + r * a_stride, a_stride, b, b_stride, count, behind(r));
  if (rows - r >= 2) {
    dot_block<2, columns>(a + r * a_stride, a_stride, b, b_stride, count, behind(r));
    r += 2;
  }
  if (r < rows) dot_block<1, columns>(a + r * a_stride, a_stride, b, b_stride, count, behind(r));
}

/// store(r, c, a[r,:] . b[c,:]) for all r < rows and c in [first, end).
template <class Storage, class Store>
inline void dots(int rows, std::int64_t first, std::int64_t end, const float* a,
                 std::int64_t a_stride, const Storage* b, std::int64_t b_stride, std::int64_t count,
                 const Store& store) {
  constexpr int at_once = 6;
  std::int64_t c = first;
  const auto behind = [&](std::int64_t done) {
    return [&store, done](int row, int column, float sum) { store(row, done + column, sum); };
  };
  for (; c + at_once <= end; c += at_once)
    dot_rows<at_once>(rows, a, a_stride, b + c * b_stride, b_stride, count, behind(c));
  for (; c < end; ++c) dot_rows<1>(rows, a, a_stride, b + c * b_stride, b_stride, count, behind(c));
}

}  // namespace brume::kernels
