#include "device/memory.hpp"

#include <malloc.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string_view>

#include "base/error.hpp"
#include "base/text.hpp"
#include "host_memory.hpp"

namespace brume::device {

namespace {

/// The number after `key` in a file of "key: number kB" lines [bytes]; -1 when it is not there.
std::int64_t kib_entry(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) return std::atoll(line.c_str() + key.size()) * 1024;
  }
  return -1;
}

}  // namespace

std::int64_t available_bytes() { return kib_entry("/proc/meminfo", "MemAvailable:"); }

void require_host_memory(std::int64_t bytes) {
  const std::int64_t available = available_bytes();
  require(available < 0 || bytes <= available, Failure::resource,
          "a block of {} ({} bytes) was asked for, but this node has {} left",
          format_bytes(static_cast<double>(bytes)), bytes,
          format_bytes(static_cast<double>(available)));
}

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
