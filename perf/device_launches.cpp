/// @file A device that is not there: copies are noted, and its memory is addresses alone.
#include <sys/mman.h>

#include <cstdint>

#include "base/error.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "launch_notes.hpp"

namespace brume::device {
namespace {

constexpr std::size_t page_bytes = 4096;

}  // namespace

void use_device(int, int) {}
Description describe_device() { return {}; }
std::unique_ptr<Stream> make_stream() { return nullptr; }
void copy(void*, const void*, std::int64_t bytes) {
  kernels::note("copy", 0.0, 2.0 * double(bytes));
}
void fill(void*, std::byte, std::int64_t bytes) { kernels::note("fill", 0.0, double(bytes)); }
void finish() {}
void copy_now(void*, const void*, std::int64_t) {}
bool is_profiled() { return false; }
void Range::begin(const std::string&) {}
void Range::end() {}

// Addresses alone, whatever their number.
Memory::Memory(std::int64_t bytes, Tier tier) : data_(nullptr, Free{tier}), bytes_(bytes) {
  if (bytes == 0) return;
  // What frees it does not know the length, which therefore lies in front: in the one page that is
  // there.
  void* const block = ::mmap(nullptr, std::size_t(bytes) + page_bytes, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  require(block != MAP_FAILED && ::mprotect(block, page_bytes, PROT_READ | PROT_WRITE) == 0,
          Failure::resource, "no addresses for {} bytes", bytes);
  *static_cast<std::size_t*>(block) = std::size_t(bytes) + page_bytes;
  data_.reset(static_cast<std::byte*>(block) + page_bytes);
}
void Memory::Free::operator()(std::byte* block) const {
  void* const begin = block - page_bytes;
  ::munmap(begin, *static_cast<std::size_t*>(begin));
}

}  // namespace brume::device
