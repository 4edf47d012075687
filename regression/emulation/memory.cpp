#include "memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "../fault/failing_calls.hpp"

namespace brume::emulation {
namespace {

// Added to an address of the host it gives one that no processor follows.
constexpr std::uint64_t device_bit = std::uint64_t{1} << 62;

std::mutex& mutex() {
  static std::mutex& made = *new std::mutex;  // outlives static objects
  return made;
}

std::map<std::uint64_t, std::unique_ptr<Allocation>>& allocations() {
  static auto& made = *new std::map<std::uint64_t, std::unique_ptr<Allocation>>;
  return made;
}

std::string describe(const Allocation& block) {
  const char* const kinds[] = {"of device memory", "of pinned memory", "of managed memory"};
  return fmt::format("a block of {} bytes {}", block.bytes, kinds[int(block.kind)]);
}

/// Cuts what is known of the bytes where an interval begins or ends.
void cut(std::map<std::uint64_t, Touched>& history, std::uint64_t at) {
  auto after = history.upper_bound(at);
  if (after == history.begin()) return;
  auto& [first, touched] = *std::prev(after);
  if (first == at || touched.end <= at) return;
  Touched second = touched;
  touched.end = at;
  history.emplace_hint(after, at, std::move(second));
}

}  // namespace

thread_local bool takes_own_memory = false;

Locked::Locked() : lock_(mutex()) {}

void report(const std::string& what) {
  std::fprintf(stderr, "emulated CUDA: %s\n", what.c_str());
  std::fflush(nullptr);
  std::_Exit(fault_code);
}

int planted(std::string_view kind) {
  static const std::string fault = [] {
    const char* const asked = std::getenv("BRUME_EMULATED_FAULT");
    return std::string(asked ? asked : "");
  }();
  const auto colon = fault.find(':');
  if (fault.substr(0, colon) != kind) return 0;
  return std::atoi(fault.c_str() + colon + 1);
}

bool next_call_fails(const char* kind) {
  const OwnMemory own;
  static std::mutex calls_mutex;
  static std::map<std::string, fault::Calls> calls;
  const std::lock_guard lock(calls_mutex);
  return calls.try_emplace(kind, kind, false).first->second.next_fails();
}

void join(Clock& clock, const Clock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (std::size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

Allocation* allocate(std::uint64_t bytes, Kind kind, int device) {
  void* host = nullptr;
  if (kind == Kind::managed) {
    host = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  } else {
    host = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (host == MAP_FAILED) host = nullptr;
  }
  if (host == nullptr) return nullptr;
  const std::uint64_t base =
      reinterpret_cast<std::uint64_t>(host) + (kind == Kind::device ? device_bit : 0);
  auto made = std::make_unique<Allocation>(
      Allocation{base, bytes, static_cast<std::byte*>(host), kind, device});
  return (allocations()[base] = std::move(made)).get();
}

void release(std::uint64_t base) {
  const auto found = allocations().find(base);
  if (found == allocations().end())
    report(fmt::format("{:#x} was freed, where no block begins", base));
  const Allocation& block = *found->second;
  if (block.kind == Kind::managed)
    std::free(block.host);
  else
    ::munmap(block.host, block.bytes);
  allocations().erase(found);
}

std::uint64_t allocated_bytes(int device) {
  std::uint64_t sum = 0;
  for (const auto& [base, block] : allocations())
    if (block->kind == Kind::device && block->device == device) sum += block->bytes;
  return sum;
}

Allocation* find(std::uint64_t address, std::uint64_t bytes, std::string_view what) {
  const auto after = allocations().upper_bound(address);
  Allocation* const block =
      after == allocations().begin() ? nullptr : std::prev(after)->second.get();
  if (block != nullptr && address - block->base < block->bytes) {
    if (bytes <= block->bytes - (address - block->base)) return block;
    report(fmt::format("out of bounds: {} touches bytes {} to {} of {}", what,
                       address - block->base, address - block->base + bytes, describe(*block)));
  }
  if (address < device_bit) return nullptr;
  if (block != nullptr)
    report(fmt::format("out of bounds: {} touches {} bytes at {}, {} bytes beyond the end of {}",
                       what, bytes, address - block->base, address - block->base - block->bytes,
                       describe(*block)));
  report(fmt::format("out of bounds: {} touches {} bytes at {:#x}, where no block is", what, bytes,
                     address));
}

void check_order(const Interval& interval, const Toucher& by, const Clock& known) {
  auto& history = interval.allocation->history;
  const auto done = [&](const Toucher& other) {
    return other.stream < 0 || (std::size_t(other.stream) < known.size() &&
                                known[std::size_t(other.stream)] >= other.time);
  };
  const auto require_done = [&](const Toucher& other, const char* verb, std::uint64_t first,
                                std::uint64_t last) {
    if (done(other)) return;
    report(
        fmt::format("race: {} in stream {} {} bytes {} to {} of {}, which {} in stream {} {}; "
                    "nothing orders the two",
                    by.name, by.stream, interval.access == Access::write ? "writes" : "reads",
                    first, last, describe(*interval.allocation), other.name, other.stream, verb));
  };
  cut(history, interval.first);
  cut(history, interval.last);
  for (std::uint64_t at = interval.first; at < interval.last;) {
    auto stretch = history.lower_bound(at);
    if (stretch == history.end() || stretch->first > at) {
      const std::uint64_t end =
          stretch == history.end() ? interval.last : std::min(interval.last, stretch->first);
      stretch = history.emplace_hint(stretch, at, Touched{end, {}, {}});
    }
    Touched& touched = stretch->second;
    require_done(touched.writer, "writes", at, touched.end);
    if (interval.access == Access::write) {
      for (const Toucher& reader : touched.readers) require_done(reader, "reads", at, touched.end);
    } else {
      std::erase_if(touched.readers, done);
      touched.readers.push_back(by);
    }
    at = touched.end;
  }
  if (interval.access == Access::read) return;
  history.erase(history.lower_bound(interval.first), history.lower_bound(interval.last));
  history.emplace(interval.first, Touched{interval.last, by, {}});
}

}  // namespace brume::emulation
