/// @file The heap of a kernels' test in a build for devices: managed memory, which kernels reach
/// too. With CUDA_LAUNCH_BLOCKING=1 the test may read as soon as a kernel returns, as on hosts.
/// Without a device the program ends with 77, which ctest counts as skipped.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdlib>
#include <memory_resource>
#include <new>

namespace {

class Managed final : public std::pmr::memory_resource {
  void* do_allocate(std::size_t bytes, std::size_t) override {
    void* block = nullptr;
    const cudaError_t result = cudaMallocManaged(&block, bytes);
    if (result == cudaErrorNoDevice || result == cudaErrorInsufficientDriver) std::_Exit(77);
    if (result != cudaSuccess) throw std::bad_alloc();
    return block;
  }
  void do_deallocate(void* block, std::size_t, std::size_t) override { cudaFree(block); }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

/// Never destroyed: what static objects own is freed last.
std::pmr::memory_resource& heap() {
  alignas(Managed) static std::byte upstream[sizeof(Managed)];
  alignas(std::pmr::synchronized_pool_resource) static std::byte
      pool[sizeof(std::pmr::synchronized_pool_resource)];
  static auto* const made = new (pool) std::pmr::synchronized_pool_resource(new (upstream) Managed);
  return *made;
}

/// Before each block.
struct alignas(std::max_align_t) Header {
  std::size_t bytes;
  bool pooled;
};

thread_local bool inside = false;  ///< CUDA may itself ask for memory while it gives some

}  // namespace

void* operator new(std::size_t bytes) {
  const std::size_t whole = bytes + sizeof(Header);
  const bool pooled = !inside;
  inside = true;
  void* const block = pooled ? heap().allocate(whole) : std::malloc(whole);
  if (pooled) inside = false;
  if (block == nullptr) throw std::bad_alloc();
  return new (block) Header{whole, pooled} + 1;
}

void operator delete(void* data) noexcept {
  if (data == nullptr) return;
  Header* const header = static_cast<Header*>(data) - 1;
  if (header->pooled)
    heap().deallocate(header, header->bytes);
  else
    std::free(header);
}

void operator delete(void* data, std::size_t) noexcept { operator delete(data); }
