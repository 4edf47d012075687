/// @file Matrix products that oneDNN has not: of fp16 and on older processors bf16 by those of
/// fp32, of 8 bits by those of bf16; a block of each factor at a time.
#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/host/gemm.hpp"
#include "kernels/host/loops.hpp"

namespace brume::kernels {
namespace {

// A block is 4 MiB in fp32, so a thread keeps 12 MiB at most; a product of blocks takes twenty
// times as long as to convert its factors.
constexpr std::int64_t block = 1024;

/// Memory of the calling thread, kept from one product to the next.
template <class Value>
Value* scratch(std::vector<Value>& kept, std::int64_t count) {
  if (std::int64_t(kept.size()) < count)
    with_memory("matrix product in pieces", [&] { kept.resize(std::size_t(count)); });
  return kept.data();
}

/// to[r, :] = body(from[r, :])
template <class From, class To, class Body>
void convert(std::int64_t rows, std::int64_t columns, const From* from, std::int64_t from_stride,
             To* to, std::int64_t to_stride, Body body) {
  for_each("convert", rows, [=](std::int64_t r) {
    const From* const in = from + r * from_stride;
    To* const out = to + r * to_stride;
#pragma omp simd
    for (std::int64_t c = 0; c < columns; ++c) out[c] = body(in[c]);
  });
}

constexpr auto same = [](float value) { return value; };

/// Rows [row, row + rows) and columns [column, column + columns) of op(factor), converted.
template <class Storage, class Value, class Body>
FactorOf<Value> piece(FactorOf<Storage> factor, std::int64_t row, std::int64_t rows,
                      std::int64_t column, std::int64_t columns, std::vector<Value>& kept,
                      Body body) {
  if (factor.transpose == Transpose::yes) std::swap(row, column), std::swap(rows, columns);
  Value* const converted = scratch(kept, rows * columns);
  convert(rows, columns, factor.data + row * factor.stride + column, factor.stride, converted,
          columns, body);
  return {converted, columns, factor.transpose};
}

/// C = op(A) op(B) of factors converted to `Value`, each element by `of_a` and `of_b`.
template <class Value, class StorageA, class StorageB, class Result, class OfA, class OfB>
void gemm_in_pieces(std::int64_t m, std::int64_t n, std::int64_t k, const FactorOf<StorageA>& a,
                    const FactorOf<StorageB>& b, Write write, Result* c, std::int64_t stride,
                    OfA of_a, OfB of_b) {
  thread_local std::vector<Value> kept_a, kept_b;
  thread_local std::vector<float> kept_c;
  constexpr bool rounds = !std::is_same_v<Result, float>;
  for (std::int64_t j = 0; j < n; j += block)
    for (std::int64_t i = 0; i < m; i += block) {
      const std::int64_t rows = std::min(block, m - i), columns = std::min(block, n - j);
      Result* const out = c + i * stride + j;
      float* sum = nullptr;
      std::int64_t sum_stride = stride;
      if constexpr (rounds) {
        sum = scratch(kept_c, rows * columns), sum_stride = columns;
        if (write == Write::accumulate) convert(rows, columns, out, stride, sum, columns, same);
      } else {
        sum = out;
      }
      for (std::int64_t p = 0; p < k; p += block) {
        const std::int64_t inner = std::min(block, k - p);
        gemm(rows, columns, inner, piece(a, i, rows, p, inner, kept_a, of_a),
             piece(b, p, inner, j, columns, kept_b, of_b), p == 0 ? write : Write::accumulate, sum,
             sum_stride);
      }
      if constexpr (rounds) convert(rows, columns, sum, columns, out, stride, same);
    }
}

/// The largest magnitude of op(factor) [rows, columns]: a NaN beats an infinity beats the rest, as
/// their bits do.
float largest_magnitude(FactorOf<bfloat16> factor, std::int64_t rows, std::int64_t columns) {
  if (factor.transpose == Transpose::yes) std::swap(rows, columns);
  thread_local std::vector<std::uint16_t> kept;
  std::uint16_t* const largest = scratch(kept, rows);
  for_each("largest_magnitude", rows, [=](std::int64_t r) {
    const bfloat16* const in = factor.data + r * factor.stride;
    std::uint16_t most = 0;
#pragma omp simd reduction(max : most)
    for (std::int64_t c = 0; c < columns; ++c)
      most = std::max(most, std::uint16_t(in[c].bits & 0x7fffu));
    largest[r] = most;
  });
  bfloat16 most;
  most.bits = *std::max_element(largest, largest + rows);
  return most;
}

/// Rounds to the numbers that `Format` times a power of two has: to bf16, which has them all.
template <class Format>
auto rounding(float largest) {
  const float scale = float8_scale<Format>(largest);
  return [scale, inverse = 1.0f / scale](float value) {
    return float(Format(value * scale)) * inverse;
  };
}

}  // namespace

template <class StorageA, class StorageB, class Result>
void gemm_widened(std::int64_t m, std::int64_t n, std::int64_t k, const FactorOf<StorageA>& a,
                  const FactorOf<StorageB>& b, Write write, Result* c, std::int64_t stride) {
  gemm_in_pieces<float>(m, n, k, a, b, write, c, stride, same, same);
}

template <class Format, class Result>
void gemm_float8(std::int64_t m, std::int64_t n, std::int64_t k, const FactorOf<bfloat16>& a,
                 const FactorOf<bfloat16>& b, Write write, Result* c, std::int64_t stride) {
  gemm_in_pieces<bfloat16>(m, n, k, a, b, write, c, stride,
                           rounding<Format>(largest_magnitude(a, m, k)),
                           rounding<float8_e4m3>(largest_magnitude(b, k, n)));
}

template void gemm_widened(std::int64_t, std::int64_t, std::int64_t, const FactorOf<bfloat16>&,
                           const FactorOf<bfloat16>&, Write, float*, std::int64_t);
template void gemm_widened(std::int64_t, std::int64_t, std::int64_t, const FactorOf<bfloat16>&,
                           const FactorOf<bfloat16>&, Write, bfloat16*, std::int64_t);
template void gemm_widened(std::int64_t, std::int64_t, std::int64_t, const FactorOf<float16>&,
                           const FactorOf<float16>&, Write, float*, std::int64_t);
template void gemm_widened(std::int64_t, std::int64_t, std::int64_t, const FactorOf<float16>&,
                           const FactorOf<float16>&, Write, float16*, std::int64_t);
template void gemm_widened(std::int64_t, std::int64_t, std::int64_t, const FactorOf<float>&,
                           const FactorOf<bfloat16>&, Write, float*, std::int64_t);
template void gemm_widened(std::int64_t, std::int64_t, std::int64_t, const FactorOf<float>&,
                           const FactorOf<bfloat16>&, Write, bfloat16*, std::int64_t);
template void gemm_widened(std::int64_t, std::int64_t, std::int64_t, const FactorOf<float>&,
                           const FactorOf<float16>&, Write, float*, std::int64_t);
template void gemm_widened(std::int64_t, std::int64_t, std::int64_t, const FactorOf<float>&,
                           const FactorOf<float16>&, Write, float16*, std::int64_t);
template void gemm_float8<float8_e4m3>(std::int64_t, std::int64_t, std::int64_t,
                                       const FactorOf<bfloat16>&, const FactorOf<bfloat16>&, Write,
                                       float*, std::int64_t);
template void gemm_float8<float8_e4m3>(std::int64_t, std::int64_t, std::int64_t,
                                       const FactorOf<bfloat16>&, const FactorOf<bfloat16>&, Write,
                                       bfloat16*, std::int64_t);
template void gemm_float8<float8_e5m2>(std::int64_t, std::int64_t, std::int64_t,
                                       const FactorOf<bfloat16>&, const FactorOf<bfloat16>&, Write,
                                       float*, std::int64_t);
template void gemm_float8<float8_e5m2>(std::int64_t, std::int64_t, std::int64_t,
                                       const FactorOf<bfloat16>&, const FactorOf<bfloat16>&, Write,
                                       bfloat16*, std::int64_t);

}  // namespace brume::kernels
