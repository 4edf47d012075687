/// @file The heap of a kernels' test: each block is managed memory of its own, which kernels reach
/// too, so that a kernel which leaves a vector by one element is found.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdlib>
#include <new>

#include "memory.hpp"

namespace {

using brume::emulation::takes_own_memory;

/// Before each block.
struct alignas(std::max_align_t) Header {
  bool managed;
};

}  // namespace

void* operator new(std::size_t bytes) {
  void* block = nullptr;
  const bool managed = !takes_own_memory;
  const std::size_t whole = bytes + sizeof(Header);
  if (!managed)
    block = std::malloc(whole);
  else if (cudaMallocManaged(&block, whole) != cudaSuccess)
    block = nullptr;
  if (block == nullptr) throw std::bad_alloc();
  return new (block) Header{managed} + 1;
}

void operator delete(void* data) noexcept {
  if (data == nullptr) return;
  Header* const header = static_cast<Header*>(data) - 1;
  if (header->managed)
    cudaFree(header);
  else
    std::free(header);
}

void operator delete(void* data, std::size_t) noexcept { operator delete(data); }
