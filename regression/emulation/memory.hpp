/// @file The memory of emulated devices: whose bytes these are, and which work touched them last.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace brume::emulation {

inline constexpr int fault_code = 86;  ///< the exit code of a program that a check has ended

/// Ends the program with `fault_code` and one line that says what the emulation found.
[[noreturn]] void report(const std::string& what);

/// Which fault a test has planted: BRUME_EMULATED_FAULT=<kind>:<n>. @return n, or 0 without one
int planted(std::string_view kind);

/// Whether this call fails for want of memory, as fault/failing_calls.hpp says. Kinds are "device",
/// "pinned", "stream", "event", "cublas" and "nccl".
bool next_call_fails(const char* kind);

/// While one lives, the calling thread takes memory of the host's own, even where a test's heap is
/// the emulation's.
extern thread_local bool takes_own_memory;
class OwnMemory {
 public:
  OwnMemory() : outer_(std::exchange(takes_own_memory, true)) {}
  ~OwnMemory() { takes_own_memory = outer_; }
  OwnMemory(const OwnMemory&) = delete;
  OwnMemory& operator=(const OwnMemory&) = delete;

 private:
  const bool outer_;
};

/// Holds the one lock of the emulation.
class Locked {
 public:
  Locked();
  std::unique_lock<std::mutex>& lock() { return lock_; }

 private:
  const OwnMemory own_;
  std::unique_lock<std::mutex> lock_;
};

/// [streams] Of each stream's work, how much is known to be done: a vector clock.
using Clock = std::vector<std::uint32_t>;
void join(Clock& clock, const Clock& other);

enum class Access : std::uint8_t { read, write };

/// Work of a stream that touched bytes. Names are kept to the end of the program.
struct Toucher {
  std::string_view name;
  int stream = -1;
  std::uint32_t time = 0;  ///< its number among the stream's work
};

/// The work that touched a stretch of bytes since the last one that wrote there.
struct Touched {
  std::uint64_t end;
  Toucher writer;
  std::vector<Toucher> readers;
};

enum class Kind : std::uint8_t { device, pinned, managed };

/// A block of memory. A device's addresses are no addresses of the host: who follows one there
/// ends with a signal.
struct Allocation {
  std::uint64_t base;
  std::uint64_t bytes;
  std::byte* host;
  Kind kind;
  int device;
  std::map<std::uint64_t, Touched> history = {};  ///< by the first byte, within the block
};

/// Bytes [first, last) of a block, touched by one piece of work.
struct Interval {
  Allocation* allocation;
  std::uint64_t first, last;
  Access access;
};

// All of these need the lock.

/// Null where the system gives no memory.
Allocation* allocate(std::uint64_t bytes, Kind kind, int device);
void release(std::uint64_t base);
std::uint64_t allocated_bytes(int device);

/// The block of `bytes` bytes at `address`, null for the host's own memory. Bytes that lie in no
/// block, or beyond its end, are a fault of `what`.
Allocation* find(std::uint64_t address, std::uint64_t bytes, std::string_view what);

/// Finds work that touched the same bytes, one of both writing, and is not known to be done by
/// `known`; notes that `by` touched them.
void check_order(const Interval& interval, const Toucher& by, const Clock& known);

}  // namespace brume::emulation
