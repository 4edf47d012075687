/// @file Matrix products of linear layers on NVIDIA devices, by cuBLASLt.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "kernels/types.hpp"

namespace brume::kernels {

enum class ElementType { fp32, tf32, bf16, fp16 };  ///< tf32: fp32 in memory, fewer bits multiplied

/// What is done with a product before it is written.
enum class Epilogue { none, bias, bias_gelu };

/// A row-major matrix in device memory.
struct DeviceMatrix {
  void* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  ElementType type = ElementType::fp32;
  std::int64_t stride = columns;  ///< elements from one row to the next
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

  /// y[n,o] = epilogue(sum_i x[n,i] w[o,i] + bias[o])  (+ y[n,o] before it when accumulating)
  ///
  /// @param bias  [O] of y's type; null without a bias in the epilogue
  void forward(DeviceMatrix x, DeviceMatrix w, Epilogue epilogue, const void* bias, Write write,
               DeviceMatrix y, cudaStream_t stream);

  /// dx[n,i] = sum_o dy[n,o] w[o,i]  (+ dx[n,i] when accumulating)
  void backward_input(DeviceMatrix dy, DeviceMatrix w, Write write, DeviceMatrix dx,
                      cudaStream_t stream);

  /// dw[o,i] = sum_n dy[n,o] x[n,i]  (+ dw[o,i] when accumulating; dw may be fp32)
  void backward_weight(DeviceMatrix dy, DeviceMatrix x, Write write, DeviceMatrix dw,
                       cudaStream_t stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace brume::kernels
