/// @file Matrix products of linear layers on NVIDIA devices, by cuBLASLt.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "kernels/types.hpp"

namespace brume::kernels {

/// tf32: fp32 in memory, fewer bits multiplied; e4m3, e5m2: of 8 bits, see base/float8.hpp
enum class ElementType { fp32, tf32, bf16, fp16, e4m3, e5m2 };

/// A row-major matrix in device memory.
struct DeviceMatrix {
  void* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  ElementType type = ElementType::fp32;
  std::int64_t stride = columns;  ///< elements from one row to the next
  /// Scale of an 8-bit operand, in device memory; null: 1
  const float* scale = nullptr;
};

/// Work that is fused with a product.
enum class Epilogue {
  none,
  bias,      ///< d[i,j] += side[j]
  gradient,  ///< side[i] = sum over the inner index of op(A)[i,:]
  gelu,      ///< z[i,j] = d[i,j] + side[j], d = gelu(z)
  slope,     ///< d[i,j] *= gelu'(z[i,j])
};

/// D = A B + C or with transposed factors, all row-major.
struct Product {
  DeviceMatrix a = {}, b = {}, c = {}, d = {};  ///< c without data: none
  bool transpose_a = false, transpose_b = false;
  Epilogue epilogue = Epilogue::none;
  void* side = nullptr;
  DeviceMatrix z = {};
};

/// Linear layers of one rank; sums are fp32 whatever the elements are. Work goes into `stream`.
/// Algorithms are looked up once per shape, strides and alignment; no size is 0. One thread at a
/// time.
class CublasLinear {
 public:
  /// @param workspace        [workspace_bytes] device memory, used by each product in turn
  /// @throws Error(resource) when cuBLASLt does not start
  CublasLinear(void* workspace, std::int64_t workspace_bytes);
  ~CublasLinear();

  /// @return  false where no algorithm does this with its epilogue, or takes such factors of 8
  ///          bits: nothing was done. Those of Hopper take a as it lies and b transposed, sizes and
  ///          strides that are multiples of 16, and one factor of e5m2 at most
  /// @throws Error(resource) where there is none without an epilogue, of other factors
  bool run(const Product& product, cudaStream_t stream);
  /// Whether it would be done.
  bool has(const Product& product);

  /// y[n,o] = residual[n,o] + sum_i x[n,i] w[o,i] + bias[o]
  ///
  /// @param bias      [O] of y's type; null adds nothing
  /// @param residual  [N, O] of y's type; without data it adds nothing. It may be y
  /// @return          false where no algorithm adds the bias: nothing was done
  bool forward(DeviceMatrix x, DeviceMatrix w, const void* bias, DeviceMatrix residual,
               DeviceMatrix y, cudaStream_t stream);

  /// dx[n,i] = sum_o dy[n,o] w[o,i]  (+ dx[n,i] when accumulating)
  void backward_input(DeviceMatrix dy, DeviceMatrix w, Write write, DeviceMatrix dx,
                      cudaStream_t stream);

  /// u[n,f] = sum_i x[n,i] w[f,i] + bias[f],  a = gelu(u), the tanh form
  ///
  /// @return  false where no algorithm makes both: nothing was done
  bool gelu_forward(DeviceMatrix x, DeviceMatrix w, const void* bias, DeviceMatrix u,
                    DeviceMatrix a, cudaStream_t stream);

  /// du[n,f] = gelu'(u[n,f]) sum_o dy[n,o] w[o,f]
  ///
  /// @return  false where no algorithm does both: nothing was done
  bool gelu_backward(DeviceMatrix dy, DeviceMatrix w, DeviceMatrix u, DeviceMatrix du,
                     cudaStream_t stream);

  /// dw[o,i] = sum_n dy[n,o] x[n,i]  (+ dw[o,i] when accumulating; dw may be fp32)
  ///
  /// @param db  [O] of dw's type, db[o] = sum_n dy[n,o], always replaced; null: not wanted
  /// @return    false where no algorithm makes db: nothing was done
  bool backward_weight(DeviceMatrix dy, DeviceMatrix x, Write write, DeviceMatrix dw, void* db,
                       cudaStream_t stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace brume::kernels
