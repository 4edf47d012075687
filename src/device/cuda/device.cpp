/// @file An NVIDIA device: copies and fills in the calling thread's stream.
#include "device/device.hpp"

#include <fmt/format.h>

#include <cstdlib>

#include "base/error.hpp"
#include "base/text.hpp"
#include "device/cuda.hpp"

namespace brume::device {

void cuda_check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  throw Error(Failure::resource, "CUDA: {} failed: {} ({}){}", what, cudaGetErrorString(result),
              cudaGetErrorName(result),
              result == cudaErrorMemoryAllocation ? "; " + cuda_memory_left() : "");
}

std::string cuda_memory_left() {
  std::size_t free_bytes = 0, total_bytes = 0;
  std::string left = "the device has no memory";
  if (cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess)
    left = fmt::format("the device has {} of {} free", format_bytes(double(free_bytes)),
                       format_bytes(double(total_bytes)));
  cudaGetLastError();  // told here, and so no failure of what comes next
  return left + ": let nothing else run on it, or lower cluster.memory_gib";
}

int cuda_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();  // having no device is no failure of what comes next
  return 0;
}

namespace {

constexpr const char* queues = "CUDA_DEVICE_MAX_CONNECTIONS";
constexpr int least_queues = 8;  ///< a rank's channels have 7 streams

}  // namespace

void set_environment(bool with_peers) {
  // Streams that share a queue of the device wait for each other's work, and with peers in a
  // circle.
  ::setenv(queues, "32", 0);
  // A kernel that is loaded when it is first called waits for all that runs, and so for peers whose
  // part of a collective may stand behind a first call of their own.
  if (with_peers) ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

void use_device(int node_rank, int ranks) {
  if (const char* asked = std::getenv(queues); asked != nullptr && ranks > 1)
    require(std::atoi(asked) >= least_queues, Failure::input,
            "{}: streams that share a queue wait for each other, and ranks may then wait for ever: "
            "found {}, expected {} to 32. Unset it",
            queues, asked, least_queues);
  const int devices = cuda_devices();
  require(devices > 0, Failure::resource,
          "this build is for NVIDIA devices, and this node shows none to the job: ask the batch "
          "system for GPUs, or use a build for hosts");
  cuda_check(cudaSetDevice(node_rank % devices), "choosing a device");
}

Description describe_device() {
  int device = 0;
  cuda_check(cudaGetDevice(&device), "asking for the device");
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, device), "asking for the device's properties");
  std::size_t free_bytes = 0, total_bytes = 0;
  cuda_check(cudaMemGetInfo(&free_bytes, &total_bytes), "asking for free memory");
  int driver = 0;
  cuda_check(cudaDriverGetVersion(&driver), "asking for the driver's version");
  return {.name = properties.name,
          .driver = fmt::format("driver of CUDA {}.{}", driver / 1000, driver / 10 % 100),
          .memory_bytes = std::int64_t(total_bytes),
          .free_bytes = std::int64_t(free_bytes),
          .on_node = cuda_devices()};
}

void copy(void* to, const void* from, std::int64_t bytes) {
  if (!has_cuda_stream()) return copy_now(to, from, bytes);
  cuda_check(cudaMemcpyAsync(to, from, std::size_t(bytes), cudaMemcpyDefault, cuda_stream()),
             "copying");
}

void fill(void* to, std::byte value, std::int64_t bytes) {
  const cudaStream_t stream = has_cuda_stream() ? cuda_stream() : cudaStreamPerThread;
  cuda_check(cudaMemsetAsync(to, std::to_integer<int>(value), std::size_t(bytes), stream),
             "filling memory");
  if (!has_cuda_stream()) cuda_check(cudaStreamSynchronize(stream), "filling memory");
}

void finish() {
  if (has_cuda_stream()) cuda_check(cudaStreamSynchronize(cuda_stream()), "work in a stream");
}

void copy_now(void* to, const void* from, std::int64_t bytes) {
  // Not cudaMemcpy: it may return before the bytes are there, and waits for other streams.
  cuda_check(cudaMemcpyAsync(to, from, std::size_t(bytes), cudaMemcpyDefault, cudaStreamPerThread),
             "copying at once");
  cuda_check(cudaStreamSynchronize(cudaStreamPerThread), "copying at once");
}

}  // namespace brume::device
