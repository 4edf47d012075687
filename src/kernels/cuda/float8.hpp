/// @file Products of factors rounded to 8 bits, see Factors::fp8, by cuBLASLt.
#pragma once

#include <utility>

#include "kernels/cublas.hpp"

namespace brume::kernels {

/// [R, K] of bf16, or where it lies transposed [K, R].
struct Float8Factor {
  ConstMatrixOf<bfloat16> values;
  bool is_gradient;
  bool transposed = false;

  std::int64_t rows() const { return std::int64_t(values.extent(transposed ? 1 : 0)); }
  std::int64_t inner() const { return std::int64_t(values.extent(transposed ? 0 : 1)); }
};

/// d[i,j] = sum_k a[i,k] b[j,k] + c[i,j], and what the epilogue says, in the calling thread's
/// stream. What tensor cores do not take, as sizes that are no multiples of 16, is rounded to the
/// same numbers in bf16.
///
/// @param rest  c, d, epilogue, side and z
/// @return      false where no algorithm has the epilogue: nothing was done
bool float8_product(CublasLinear& linear, const Float8Factor& a, const Float8Factor& b,
                    const Product& rest);

}  // namespace brume::kernels
