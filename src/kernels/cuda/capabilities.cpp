#include <cublasLt.h>
#ifdef BRUME_CUDNN
#include <cudnn.h>
#endif
#include <fmt/format.h>

#include "device/cuda.hpp"
#include "kernels/kokkos.hpp"
#include "kernels/narrow.hpp"
#include "kernels/types.hpp"

namespace brume::kernels {

namespace {

/// Of the calling thread's device: 90 for 9.0.
int capability() {
  int device = 0, major = 0, minor = 0;
  const auto ask = [&](cudaDeviceAttr attribute, int& value) {
    device::cuda_check(cudaDeviceGetAttribute(&value, attribute, device),
                       "asking for the device's capability");
  };
  device::cuda_check(cudaGetDevice(&device), "asking for the device");
  ask(cudaDevAttrComputeCapabilityMajor, major);
  ask(cudaDevAttrComputeCapabilityMinor, minor);
  return 10 * major + minor;
}

/// What computes attention of 16 bits, if not a kernel of ours.
std::string attention_version() {
#ifdef BRUME_CUDNN
  const std::size_t cudnn = cudnnGetVersion();
  return fmt::format(", cuDNN {}.{}.{}", cudnn / 10000, cudnn / 100 % 100, cudnn % 100);
#else
  return "";
#endif
}

}  // namespace

bool has_bfloat16_instructions() { return capability() >= 80; }
bool has_float16_instructions() { return true; }
bool has_float8_instructions() { return capability() >= 89; }
bool has_tf32_instructions() { return capability() >= 80; }

std::string versions() {
  const std::size_t cublas = cublasLtGetVersion();
  return fmt::format("cuBLASLt {}.{}.{}{}{}, {}", cublas / 10000, cublas / 100 % 100, cublas % 100,
                     tf32_allowed() ? " TF32" : "", attention_version(), kokkos_version());
}

}  // namespace brume::kernels
