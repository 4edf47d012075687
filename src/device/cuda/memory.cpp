/// @file Memory of a device and pinned memory of the host.
#include "device/memory.hpp"

#include "../host_memory.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "device/cuda.hpp"

namespace brume::device {
namespace {

void* take_on_device(std::int64_t bytes) {
  void* block = nullptr;
  if (cudaMalloc(&block, std::size_t(bytes)) == cudaSuccess) return block;
  cudaGetLastError();  // told here, and so no failure of what comes next
  throw Error(Failure::resource, "a block of {} ({} bytes) of device memory was asked for; {}",
              format_bytes(double(bytes)), bytes, cuda_memory_left());
}

void* take_pinned(std::int64_t bytes) {
  require_host_memory(bytes);
  void* block = nullptr;
  if (cudaHostAlloc(&block, std::size_t(bytes), cudaHostAllocPortable) == cudaSuccess) return block;
  cudaGetLastError();
  throw Error(Failure::resource,
              "a block of {} ({} bytes) of pinned memory was asked for, but the system does not "
              "give it, though {} are left: raise the limit of locked memory (ulimit -l), or lower "
              "cluster.host_memory_gib",
              format_bytes(double(bytes)), bytes, format_bytes(double(available_bytes())));
}

}  // namespace

Memory::Memory(std::int64_t bytes, Tier tier) : data_(nullptr, Free{tier}), bytes_(bytes) {
  require(bytes >= 0, Failure::bug, "a block of {} bytes was asked for", bytes);
  if (bytes == 0) return;
  data_.reset(
      static_cast<std::byte*>(tier == Tier::device ? take_on_device(bytes) : take_pinned(bytes)));
}

void Memory::Free::operator()(std::byte* block) const {
  tier == Tier::device ? cudaFree(block) : cudaFreeHost(block);
}

}  // namespace brume::device
