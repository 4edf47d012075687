/// @file Products of a tile of attention weights, over exactly the pairs that see each other.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/host/loops.hpp"

namespace brume::kernels {

// Sums that stay in registers: rows x groups of Lanes. What is left of 32 wide registers holds a
// row of x and a weight; narrower machines split each of the Lanes.
#ifdef __AVX512F__
constexpr int sum_rows = 6;
constexpr int sum_groups = 4;
#else
constexpr int sum_rows = 3;
constexpr int sum_groups = 2;
#endif

/// `count` weights for each of some rows, and the rows of x they weigh.
struct Weighed {
  const float* weights;
  std::int64_t row_step;   ///< from the weights of one row to the next row's
  std::int64_t next_step;  ///< from one weight of a row to the next
  const float* x;
  std::int64_t x_stride;
  int count;
};

/// Floats [0, width) of a row, zeros behind them.
template <int width>
inline Lanes load_row(const float* row) {
  Lanes lanes_of_row{};
  std::memcpy(&lanes_of_row, row, width * sizeof(float));
  return lanes_of_row;
}

/// out[r,:] += sum_i weights[r,i] x[i,:] for `rows` rows, over `groups` Lanes of columns or, when
/// below a whole one, over `width` columns.
template <int rows, int groups, int width = lanes>
inline void add_weighed(const Weighed& in, float* out, std::int64_t stride) {
  Lanes sums[rows][groups];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int g = 0; g < groups; ++g) sums[r][g] = load_row<width>(out + r * stride + g * lanes);
  for (int i = 0; i < in.count; ++i) {
    Lanes x[groups];
#pragma GCC unroll 8
    for (int g = 0; g < groups; ++g) x[g] = load_row<width>(in.x + i * in.x_stride + g * lanes);
    const float* const weights = in.weights + i * in.next_step;
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
      for (int g = 0; g < groups; ++g) sums[r][g] += weights[r * in.row_step] * x[g];
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int g = 0; g < groups; ++g)
      std::memcpy(out + r * stride + g * lanes, &sums[r][g], width * sizeof(float));
}

/// The same over `columns` columns, widest groups first.
template <int rows>
inline void add_weighed_rows(Weighed in, int columns, float* out, std::int64_t stride) {
  if (in.count <= 0) return;
  const auto pass = [&](int done) { in.x += done, out += done, columns -= done; };
  for (; columns >= sum_groups * lanes; pass(sum_groups * lanes))
    add_weighed<rows, sum_groups>(in, out, stride);
  for (; columns >= 2 * lanes; pass(2 * lanes)) add_weighed<rows, 2>(in, out, stride);
  for (; columns >= lanes; pass(lanes)) add_weighed<rows, 1>(in, out, stride);
  for (; columns > 0; pass(1)) add_weighed<rows, 1, 1>(in, out, stride);
}

}  // namespace brume::kernels
