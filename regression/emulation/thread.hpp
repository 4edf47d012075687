/// @file What a translated kernel sees: its thread, the block's other threads, and memory, each
/// access of which is checked.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "memory.hpp"

namespace brume::emulation {

struct Dim {
  std::uint32_t x = 1, y = 1, z = 1;
};

struct Thread;

struct Kernel {
  struct Parameter {
    std::uint32_t offset, bytes;
  };
  bool (*run)(Thread&);  ///< from where the thread stands; whether it has come to its end
  std::vector<Parameter> parameters;
  std::uint32_t shared_bytes, local_bytes;
  std::vector<int> site_lines;  ///< [accesses of global memory] the line in the PTX
  std::size_t register_bytes;   ///< of a thread that waits for others of its block; 0: none does
  std::string name = {};        ///< as one would call it
};

/// Enters a kernel under its mangled name.
struct Registered {
  Registered(const char* mangled, Kernel kernel);
};
const Kernel& kernel_of(const std::string& mangled);

/// The bytes of a block that a running kernel has read and written.
struct Marks {
  static constexpr int stretch_shift = 15;  ///< a stretch has 32 KiB

  void clear();  ///< for another kernel
  void add_intervals(Access access, std::vector<Interval>& to) const;

  Allocation* allocation = nullptr;
  std::uint64_t base = 0, bytes = 0;
  std::byte* host = nullptr;
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::array<std::unique_ptr<std::uint64_t[], Free>, 2> bits = {};  ///< [access][bytes / 64]
  std::unique_ptr<std::uint8_t[], Free> stretches = {};  ///< those of which any byte was touched

 private:
  std::uint64_t first_word(std::uint64_t stretch) const {
    return std::min(stretch << stretch_shift >> 6, bytes / 64 + 1);
  }
};

/// One run of a kernel, block by block.
class Launch {
 public:
  Launch(const Kernel& kernel, Dim grid, Dim block, std::vector<std::byte> parameters);

  /// Runs all blocks. @return what the kernel touched
  std::vector<Interval> run();

  const Kernel& kernel() const { return kernel_; }
  const std::vector<std::byte>& parameters() const { return parameters_; }

  /// The host's address of memory that the kernel touches at one of its instructions.
  std::byte* touch(std::uint32_t site, std::uint64_t at, std::uint32_t bytes,
                   std::uint32_t alignment, Access access) {
    Marks* marks = sites_[site];
    std::uint64_t offset = at - marks->base;
    if (offset >= marks->bytes || marks->bytes - offset < bytes || at % alignment != 0) {
      marks = enter(site, at, bytes, alignment);
      offset = at - marks->base;
    }
    const std::uint64_t ones = ~std::uint64_t{0} >> (64 - bytes);
    marks->bits[std::size_t(access)][offset / 64] |= ones << (offset % 64);
    marks->stretches[offset >> Marks::stretch_shift] = 1;
    return marks->host + offset;
  }

  /// The kernel's name and an instruction's place, for messages.
  std::string place(std::uint32_t site) const;

 private:
  Marks* enter(std::uint32_t site, std::uint64_t at, std::uint32_t bytes, std::uint32_t alignment);
  std::vector<Interval> intervals() const;

  const Kernel& kernel_;
  const Dim grid_, block_;
  const std::vector<std::byte> parameters_;
  std::vector<std::unique_ptr<Marks>> all_;
  std::vector<Marks*> sites_;  ///< [accesses of global memory] what each touched last
};

class Block;

/// A thread of a kernel, as PTX names its numbers.
struct Thread {
  Dim tid, ntid, ctaid, nctaid;
  std::uint32_t number;  ///< in its block
  Launch* launch;
  Block* block;
  std::byte *local, *registers;
  int place;     ///< where it waits, counted in its kernel; 0: it begins
  int barriers;  ///< that it has come to
  struct Shuffle {
    int line;  ///< of the PTX
    std::uint32_t value, distance, clamp, mask;
    bool other;  ///< the value is another lane's
  } shuffle;     ///< which it waits at, and its result
};

/// The thread has come to a barrier. @return whether it may go on at once
bool arrive_at_barrier(Thread& thread);

/// The thread has come to `thread.shuffle`: each lane of the mask gives its value and takes that of
/// lane `lane ^ distance`, or its own where that lies beyond the segment that `clamp` says.
/// @return whether all of them have come
bool arrive_at_shuffle(Thread& thread);

/// Memory of the block.
std::byte* shared(Thread& thread, std::uint64_t at, std::uint32_t bytes, std::uint32_t alignment,
                  Access access);

}  // namespace brume::emulation
