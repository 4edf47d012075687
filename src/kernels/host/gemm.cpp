#include "kernels/host/gemm.hpp"

#include <algorithm>
#include <type_traits>
#include <vector>

#include <oneapi/dnnl/dnnl.h>

#include "base/error.hpp"
#include "kernels/host/few_rows.hpp"
#include "kernels/host/quantized_blocks.hpp"
#include "kernels/kokkos.hpp"
#include "kernels/pointwise.hpp"

namespace brume::kernels {
namespace {

/// C = 0 where a size is 0, which oneDNN refuses. @return whether one is
template <class Result>
bool is_empty(std::int64_t m, std::int64_t n, std::int64_t k, bool replace, Result* c,
              std::int64_t stride) {
  if (m > 0 && n > 0 && k > 0) return false;
  for (std::int64_t i = 0; replace && i < m; ++i) std::fill_n(c + i * stride, n, Result(0.0f));
  return true;
}

/// C += row in each row, where there is one.
template <class Result>
void add_row(std::int64_t m, std::int64_t n, Result* c, std::int64_t stride, const Result* row) {
  if (row == nullptr || m == 0 || n == 0) return;
  const MatrixView<Result> matrix(c, std::size_t(m), std::size_t(n), std::size_t(stride));
  add_bias<Result>(matrix, ConstVectorOf<Result>(row, std::size_t(n)), matrix);
}

/// The product of few rows with a transposed factor: oneDNN would first bring all of that into an
/// order of its own.
///
/// @param rows_of  (first, end): rows of B as a factor, whose first row is row `first`
template <class StorageA, class RowsOf, class Result>
void gemm_few_rows(std::int64_t m, std::int64_t n, std::int64_t k, const FactorOf<StorageA>& a,
                   const RowsOf& rows_of, Write write, Result* c, std::int64_t stride) {
  std::vector<float> copies(std::size_t(m * k));
  for (std::int64_t r = 0; r < m; ++r) {
    const StorageA* const from = a.data + r * a.stride;
    float* const to = copies.data() + r * k;
#pragma omp simd
    for (std::int64_t i = 0; i < k; ++i) to[i] = from[i];
  }
  const bool adds = write == Write::accumulate;
  constexpr std::int64_t columns_of_piece = 48;
  for_each_piece("gemm_few_rows", n, columns_of_piece, [&](std::int64_t first, std::int64_t end) {
    const auto b = rows_of(first, end);
    dots(int(m), 0, end - first, copies.data(), k, b.data, b.stride, k,
         [&](int r, std::int64_t column, float sum) {
           Result& at = c[r * stride + first + column];
           at = adds ? float(at) + sum : sum;
         });
  });
}

}  // namespace

void gemm(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, Factor a, Factor b,
          float beta, float* c, std::int64_t stride) {
  if (is_empty(m, n, k, beta == 0.0f, c, stride)) return;
  const dnnl_status_t status = dnnl_sgemm(char(a.transpose), char(b.transpose), m, n, k, alpha,
                                          a.data, a.stride, b.data, b.stride, beta, c, stride);
  require(status != dnnl_out_of_memory, Failure::resource,
          "the matrix product [{} x {}] [{} x {}]: {}", m, k, k, n, memory_ran_out);
  require(
      status == dnnl_success, Failure::bug,
      "oneDNN refused the matrix product [{} x {}] [{} x {}] with strides {}, {}, {}: status {}", m,
      k, k, n, a.stride, b.stride, stride, int(status));
}

template <class StorageA, class StorageB, class Result>
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, const FactorOf<StorageA>& a,
          const FactorOf<StorageB>& b, Write write, Result* c, std::int64_t stride,
          const Result* row) {
  const Region region("matrix product");
  // fp32, 2 cores, the shapes of layers of 256 and 768 features: with B transposed the primitive is
  // up to twice as fast as sgemm for 128 and 256 tokens (inner size 1024) and 5 % slower at most
  // for 4096; else sgemm is as fast for few tokens and up to twice as fast for many.
  constexpr bool is_wide = std::is_same_v<StorageB, float>;
  if (m > 0 && n > 0 && k > 0 && a.transpose == Transpose::no && b.transpose == Transpose::yes) {
    if constexpr (std::is_same_v<StorageA, bfloat16> && std::is_same_v<StorageB, bfloat16>)
      if (has_tiles(m, k)) {
        gemm_tiles(m, n, k, a, b, write, c, stride);
        return add_row(m, n, c, stride, row);
      }
    if (m <= few_rows) {
      const auto rows_of = [&](std::int64_t first, std::int64_t) {
        return FactorOf<StorageB>{b.data + first * b.stride, b.stride};
      };
      gemm_few_rows(m, n, k, a, rows_of, write, c, stride);
      return add_row(m, n, c, stride, row);
    }
  }
  if constexpr (std::is_same_v<StorageA, bfloat16> && std::is_same_v<StorageB, bfloat16>)
    if (has_blocks(m, n, k)) return gemm_blocks(m, n, k, a, b, write, c, stride, row);
  if constexpr (std::is_same_v<StorageA, StorageB> && !std::is_same_v<StorageB, float16>) {
    const bool has_primitive = is_wide ? b.transpose == Transpose::yes : has_bfloat16_primitive();
    if (has_primitive && m > 0 && n > 0 && k > 0)
      return gemm_by_primitive(m, n, k, a, b, write, c, stride, row);
  }
  if (!is_empty(m, n, k, write == Write::replace, c, stride)) {
    if constexpr (is_wide)
      gemm(m, n, k, 1.0f, a, b, write == Write::accumulate ? 1.0f : 0.0f, c, stride);
    else
      gemm_widened(m, n, k, a, b, write, c, stride);
  }
  add_row(m, n, c, stride, row);
}

template <class Storage>
bool gemm_takes_blocks(std::int64_t m) {
  return m <= few_rows || (std::is_same_v<Storage, bfloat16> && has_tiles(m, quantized_block));
}

template <class Storage>
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, const FactorOf<Storage>& a,
          const QuantizedFactor& b, Write write, Storage* c, std::int64_t stride) {
  if constexpr (std::is_same_v<Storage, bfloat16>)
    if (has_tiles(m, k)) return gemm_tiles(m, n, k, a, b, write, c, stride);
  const auto rows_of = [&](std::int64_t first, std::int64_t end) {
    thread_local std::vector<Storage> rows;
    rows.resize(std::size_t((end - first) * k));
    dequantize_blocks(b.format, kernels::rows_of(b, k, first),
                      (end - first) * (k / quantized_block), rows.data());
    return FactorOf<Storage>{rows.data(), k};
  };
  gemm_few_rows(m, n, k, a, rows_of, write, c, stride);
}

template bool gemm_takes_blocks<float>(std::int64_t);
template bool gemm_takes_blocks<bfloat16>(std::int64_t);
template bool gemm_takes_blocks<float16>(std::int64_t);
template void gemm(std::int64_t, std::int64_t, std::int64_t, const FactorOf<float>&,
                   const QuantizedFactor&, Write, float*, std::int64_t);
template void gemm(std::int64_t, std::int64_t, std::int64_t, const FactorOf<bfloat16>&,
                   const QuantizedFactor&, Write, bfloat16*, std::int64_t);
template void gemm(std::int64_t, std::int64_t, std::int64_t, const FactorOf<float16>&,
                   const QuantizedFactor&, Write, float16*, std::int64_t);
template void gemm(std::int64_t, std::int64_t, std::int64_t, const FactorOf<float>&,
                   const FactorOf<float>&, Write, float*, std::int64_t, const float*);
template void gemm(std::int64_t, std::int64_t, std::int64_t, const FactorOf<bfloat16>&,
                   const FactorOf<bfloat16>&, Write, float*, std::int64_t, const float*);
template void gemm(std::int64_t, std::int64_t, std::int64_t, const FactorOf<bfloat16>&,
                   const FactorOf<bfloat16>&, Write, bfloat16*, std::int64_t, const bfloat16*);
template void gemm(std::int64_t, std::int64_t, std::int64_t, const FactorOf<float16>&,
                   const FactorOf<float16>&, Write, float*, std::int64_t, const float*);
template void gemm(std::int64_t, std::int64_t, std::int64_t, const FactorOf<float16>&,
                   const FactorOf<float16>&, Write, float16*, std::int64_t, const float16*);
template void gemm(std::int64_t, std::int64_t, std::int64_t, const FactorOf<float>&,
                   const FactorOf<bfloat16>&, Write, float*, std::int64_t, const float*);
template void gemm(std::int64_t, std::int64_t, std::int64_t, const FactorOf<float>&,
                   const FactorOf<bfloat16>&, Write, bfloat16*, std::int64_t, const bfloat16*);
template void gemm(std::int64_t, std::int64_t, std::int64_t, const FactorOf<float>&,
                   const FactorOf<float16>&, Write, float*, std::int64_t, const float*);
template void gemm(std::int64_t, std::int64_t, std::int64_t, const FactorOf<float>&,
                   const FactorOf<float16>&, Write, float16*, std::int64_t, const float16*);

}  // namespace brume::kernels
