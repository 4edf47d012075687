#include <cublasLt.h>
#include <fmt/format.h>

#include "device/cuda.hpp"
#include "kernels/kokkos.hpp"
#include "kernels/narrow.hpp"
#include "kernels/types.hpp"

namespace brume::kernels {

bool has_bfloat16_instructions() {
  int device = 0, major = 0;
  device::cuda_check(cudaGetDevice(&device), "asking for the device");
  device::cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                     "asking for the device's capability");
  return major >= 8;  // Ampere and later
}

bool has_float16_instructions() { return true; }

std::string versions() {
  const std::size_t cublas = cublasLtGetVersion();
  return fmt::format("cuBLASLt {}.{}.{}, {}", cublas / 10000, cublas / 100 % 100, cublas % 100,
                     kokkos_version());
}

}  // namespace brume::kernels
