#include "device/memory.hpp"

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string_view>

#include "base/error.hpp"
#include "base/text.hpp"

namespace brume::device {

namespace {

constexpr std::int64_t page_bytes = 4096;

/// The number after `key` in a file of "key: number kB" lines [bytes]; -1 when it is not there.
std::int64_t kib_entry(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) return std::atoll(line.c_str() + key.size()) * 1024;
  }
  return -1;
}

/// Refuses what the node has not got: the kernel would grant it and kill the job at first touch.
void require_available(std::int64_t bytes) {
  const std::int64_t available = kib_entry("/proc/meminfo", "MemAvailable:");
  require(available < 0 || bytes <= available, Failure::resource,
          "a block of {} ({} bytes) was asked for, but this node has {} left",
          format_bytes(static_cast<double>(bytes)), bytes,
          format_bytes(static_cast<double>(available)));
}

}  // namespace

Memory::Memory(std::int64_t bytes) : bytes_(bytes) {
  require(bytes >= 0, Failure::bug, "a block of {} bytes was asked for", bytes);
  if (bytes == 0) return;
  require_available(bytes);
  const auto rounded = static_cast<std::size_t>(round_up(bytes, page_bytes));
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(page_bytes, rounded)));
  require(data_ != nullptr, Failure::resource,
          "a block of {} ({} bytes) was asked for, but the system does not give it",
          format_bytes(static_cast<double>(bytes)), bytes);
  madvise(data_.get(), rounded, MADV_HUGEPAGE);  // a hint: fewer faults now, fewer TLB misses later
  volatile std::byte* const block = data_.get();
  for (std::size_t at = 0; at < rounded; at += page_bytes) block[at] = std::byte{0};
}

void Memory::Free::operator()(std::byte* block) const { std::free(block); }

std::int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t total_pages = 0;
  std::int64_t resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

std::int64_t peak_resident_bytes() {
  // Not getrusage: its maximum also counts the program that started this one.
  return kib_entry("/proc/self/status", "VmHWM:");
}

void release_unused() {
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs")
      << "5";  // 5: the peak resident set becomes the present one
}

}  // namespace brume::device
