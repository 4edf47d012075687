#include "device/memory.hpp"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string_view>

#include "base/error.hpp"
#include "base/text.hpp"
#include "device/control_group.hpp"
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

std::int64_t available_bytes() {
  const std::int64_t of_node = kib_entry("/proc/meminfo", "MemAvailable:");
  const std::int64_t of_groups = control_group_free_bytes();
  if (of_groups == std::numeric_limits<std::int64_t>::max()) return of_node;
  return of_node < 0 ? of_groups : std::min(of_node, of_groups);
}

std::int64_t installed_bytes() {
  const std::int64_t of_node = kib_entry("/proc/meminfo", "MemTotal:");
  return of_node < 0 ? of_node : std::min(of_node, control_group_limit_bytes());
}

std::int64_t address_space_left() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return std::numeric_limits<std::int64_t>::max();
  const std::int64_t taken = std::max<std::int64_t>(kib_entry("/proc/self/status", "VmSize:"), 0);
  return std::max<std::int64_t>(std::int64_t(limit.rlim_cur) - taken, 0);
}

void require_address_space(std::int64_t bytes) {
  // Threads reserve tens of MiB each, and libraries end in their own ways where they get none.
  constexpr std::int64_t for_others = std::int64_t{1} << 30;
  const std::int64_t left = address_space_left();
  require(bytes <= left - for_others, Failure::resource,
          "a process may map {} more (ulimit -v), but needs {}, and {} for threads and libraries: "
          "raise the limit",
          format_bytes(double(left)), format_bytes(double(bytes)),
          format_bytes(double(for_others)));
}

void require_host_memory(std::int64_t bytes) {
  const std::int64_t available = available_bytes();
  require(available < 0 || bytes <= available, Failure::resource,
          "a block of {} ({} bytes) was asked for, but this node, or this job's part of it, has {} "
          "left: run fewer ranks on the node, or lower cluster.memory_gib and "
          "cluster.host_memory_gib",
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
