#include "base/error.hpp"
#include "base/text.hpp"
#include "device/cuda.hpp"

namespace brume::device {

void cuda_check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  throw Error(Failure::resource, "CUDA: {} failed: {} ({})", what, cudaGetErrorString(result),
              cudaGetErrorName(result));
}

int cuda_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();  // having no device is no failure of what comes next
  return 0;
}

CudaDevice cuda_device(int index) {
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, index), "asking for a device's properties");
  return {.name = properties.name,
          .memory_bytes = std::int64_t(properties.totalGlobalMem),
          .compute_capability = 10 * properties.major + properties.minor};
}

int cuda_device_of(int local_rank, int num_devices) {
  require(num_devices > 0, Failure::resource, "this node has no CUDA device");
  return local_rank % num_devices;
}

CudaMemory::CudaMemory(int device, std::int64_t bytes) : bytes_(bytes) {
  cuda_check(cudaSetDevice(device), "choosing a device");
  std::size_t free_bytes = 0, total_bytes = 0;
  cuda_check(cudaMemGetInfo(&free_bytes, &total_bytes), "asking for free memory");
  void* block = nullptr;
  if (cudaMalloc(&block, std::size_t(bytes)) != cudaSuccess) {
    cudaGetLastError();
    throw Error(Failure::resource, "CUDA: no {} of memory on device {}: {} of {} are free",
                format_bytes(double(bytes)), device, format_bytes(double(free_bytes)),
                format_bytes(double(total_bytes)));
  }
  data_.reset(static_cast<std::byte*>(block));
}

void CudaMemory::Free::operator()(std::byte* block) const { cudaFree(block); }

PinnedMemory::PinnedMemory(std::int64_t bytes) : bytes_(bytes) {
  void* block = nullptr;
  if (cudaHostAlloc(&block, std::size_t(bytes), cudaHostAllocPortable) != cudaSuccess) {
    cudaGetLastError();
    throw Error(Failure::resource, "CUDA: no {} of pinned host memory",
                format_bytes(double(bytes)));
  }
  data_.reset(static_cast<std::byte*>(block));
}

void PinnedMemory::Free::operator()(std::byte* block) const { cudaFreeHost(block); }

void cuda_copy(std::byte* destination, const std::byte* source, std::int64_t bytes,
               cudaStream_t stream) {
  cuda_check(cudaMemcpyAsync(destination, source, std::size_t(bytes), cudaMemcpyDefault, stream),
             "copying");
}

}  // namespace brume::device
