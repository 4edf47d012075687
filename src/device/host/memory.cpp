/// @file Both tiers in the host's memory.
#include "device/memory.hpp"

#include <sys/mman.h>

#include <cstdlib>

#include "../host_memory.hpp"
#include "base/error.hpp"
#include "base/text.hpp"

namespace brume::device {

Memory::Memory(std::int64_t bytes, Tier tier) : data_(nullptr, Free{tier}), bytes_(bytes) {
  constexpr std::int64_t page_bytes = 4096;
  require(bytes >= 0, Failure::bug, "a block of {} bytes was asked for", bytes);
  if (bytes == 0) return;
  require_host_memory(bytes);
  const auto rounded = static_cast<std::size_t>(round_up(bytes, page_bytes));
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(page_bytes, rounded)));
  require(
      data_ != nullptr, Failure::resource,
      "a block of {} ({} bytes) was asked for, but the system does not give it: run fewer ranks "
      "on the node, or lower cluster.memory_gib and cluster.host_memory_gib",
      format_bytes(static_cast<double>(bytes)), bytes);
  madvise(data_.get(), rounded, MADV_HUGEPAGE);  // a hint: fewer faults now, fewer TLB misses later
  volatile std::byte* const block = data_.get();
  for (std::size_t at = 0; at < rounded; at += page_bytes) block[at] = std::byte{0};
}

void Memory::Free::operator()(std::byte* block) const { std::free(block); }

}  // namespace brume::device
