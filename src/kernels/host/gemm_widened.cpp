/// @file Matrix products that oneDNN has not, of fp16 and on older processors bf16: by those of
/// fp32, a block of each factor at a time.
#include <type_traits>
#include <vector>

#include "kernels/host/gemm.hpp"
#include "kernels/host/loops.hpp"

namespace brume::kernels {
namespace {

// A block is 4 MiB in fp32, so a thread keeps 12 MiB at most; a product of blocks takes twenty
// times as long as to widen its factors.
constexpr std::int64_t block = 1024;

/// fp32 memory of the calling thread, kept from one product to the next.
float* scratch(std::vector<float>& kept, std::int64_t count) {
  if (std::int64_t(kept.size()) < count)
    with_memory("matrix product in pieces", [&] { kept.resize(std::size_t(count)); });
  return kept.data();
}

/// to[r, :] = from[r, :] in the format of `to`.
template <class From, class To>
void convert(std::int64_t rows, std::int64_t columns, const From* from, std::int64_t from_stride,
             To* to, std::int64_t to_stride) {
  for_each("convert", rows, [=](std::int64_t r) {
    const From* const in = from + r * from_stride;
    To* const out = to + r * to_stride;
#pragma omp simd
    for (std::int64_t c = 0; c < columns; ++c) out[c] = in[c];
  });
}

/// Rows [row, row + rows) and columns [column, column + columns) of op(factor), in fp32.
template <class Storage>
Factor widened(FactorOf<Storage> factor, std::int64_t row, std::int64_t rows, std::int64_t column,
               std::int64_t columns, std::vector<float>& kept) {
  if (factor.transpose == Transpose::yes) std::swap(row, column), std::swap(rows, columns);
  float* const wide = scratch(kept, rows * columns);
  convert(rows, columns, factor.data + row * factor.stride + column, factor.stride, wide, columns);
  return {wide, columns, factor.transpose};
}

}  // namespace

template <class Storage, class Result>
void gemm_widened(std::int64_t m, std::int64_t n, std::int64_t k, const FactorOf<Storage>& a,
                  const FactorOf<Storage>& b, Write write, Result* c, std::int64_t stride) {
  thread_local std::vector<float> kept_a, kept_b, kept_c;
  constexpr bool rounds = !std::is_same_v<Result, float>;
  for (std::int64_t j = 0; j < n; j += block)
    for (std::int64_t i = 0; i < m; i += block) {
      const std::int64_t rows = std::min(block, m - i), columns = std::min(block, n - j);
      Result* const out = c + i * stride + j;
      float* sum = nullptr;
      std::int64_t sum_stride = stride;
      if constexpr (rounds) {
        sum = scratch(kept_c, rows * columns), sum_stride = columns;
        if (write == Write::accumulate) convert(rows, columns, out, stride, sum, columns);
      } else {
        sum = out;
      }
      for (std::int64_t p = 0; p < k; p += block) {
        const std::int64_t inner = std::min(block, k - p);
        gemm(rows, columns, inner, widened(a, i, rows, p, inner, kept_a),
             widened(b, p, inner, j, columns, kept_b), p == 0 ? write : Write::accumulate, sum,
             sum_stride);
      }
      if constexpr (rounds) convert(rows, columns, sum, columns, out, stride);
    }
}

template void gemm_widened(std::int64_t, std::int64_t, std::int64_t, const FactorOf<bfloat16>&,
                           const FactorOf<bfloat16>&, Write, float*, std::int64_t);
template void gemm_widened(std::int64_t, std::int64_t, std::int64_t, const FactorOf<bfloat16>&,
                           const FactorOf<bfloat16>&, Write, bfloat16*, std::int64_t);
template void gemm_widened(std::int64_t, std::int64_t, std::int64_t, const FactorOf<float16>&,
                           const FactorOf<float16>&, Write, float*, std::int64_t);
template void gemm_widened(std::int64_t, std::int64_t, std::int64_t, const FactorOf<float16>&,
                           const FactorOf<float16>&, Write, float16*, std::int64_t);

}  // namespace brume::kernels
