#include "kernels/gemm.hpp"

#include <algorithm>

#include <oneapi/dnnl/dnnl.h>

#include "base/error.hpp"

namespace brume::kernels {

// Measured against oneDNN's matmul primitive: as fast or faster in every shape of a transformer
// layer, on 1 and 2 threads, and it needs neither a primitive cache nor a primitive per stride.
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, Factor a, Factor b,
          float beta, float* c, std::int64_t stride) {
  if (m == 0 || n == 0 || k == 0) {  // oneDNN refuses these
    for (std::int64_t i = 0; beta == 0.0f && i < m; ++i) std::fill_n(c + i * stride, n, 0.0f);
    return;
  }
  const dnnl_status_t status = dnnl_sgemm(char(a.transpose), char(b.transpose), m, n, k, alpha,
                                          a.data, a.stride, b.data, b.stride, beta, c, stride);
  require(status != dnnl_out_of_memory, Failure::resource,
          "no memory for the matrix product [{} x {}] [{} x {}]", m, k, k, n);
  require(
      status == dnnl_success, Failure::bug,
      "oneDNN refused the matrix product [{} x {}] [{} x {}] with strides {}, {}, {}: status {}", m,
      k, k, n, a.stride, b.stride, stride, int(status));
}

}  // namespace brume::kernels
