/// @file This rank's memory: one block a tier, cut as the Program was placed.
#pragma once

#include <array>
#include <vector>

#include "device/memory.hpp"
#include "schedule/program.hpp"

namespace brume::engine {

/// The arenas of a rank. Buffers of several Programs may lie in them, one Program at a time.
class Arena {
 public:
  explicit Arena(const std::array<std::int64_t, schedule::num_tiers>& bytes);

  std::byte* at(const schedule::Buffer& buffer) const {
    return tiers_[std::size_t(buffer.tier)].data() + buffer.offset;
  }

 private:
  std::array<device::Memory, schedule::num_tiers> tiers_;
};

/// Watches for writes outside of buffers: fills what a buffer holds at birth with NaN, and the
/// guard behind it with a pattern that must still be there after each task.
class GuardCheck {
 public:
  GuardCheck(const schedule::Program& program, const Arena& arena);

  void before(int task) const;
  /// @throws Error(bug) naming task and buffer when a guard was written to
  void after(int task) const;

 private:
  const schedule::Program& program_;
  const Arena& arena_;
  std::vector<std::vector<int>> born_;  ///< by task: buffers whose life begins with it
};

}  // namespace brume::engine
