/// @file This rank's memory: one block a tier, on disk a file, cut as the Program was placed.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "device/memory.hpp"
#include "device/scratch_file.hpp"
#include "engine/settings.hpp"
#include "schedule/program.hpp"

namespace brume::engine {

/// The arenas of a rank. Buffers of several Programs may lie in them, one Program at a time.
class Arena {
 public:
  /// @param scratch  directory of the file; see device::ScratchFile
  Arena(const std::array<std::int64_t, schedule::num_tiers>& bytes, const std::string& scratch);

  /// Takes no memory of its own, and has no disk.
  explicit Arena(const LentMemory& lent);

  /// The address of a buffer that is in memory.
  std::byte* at(const schedule::Buffer& buffer) const {
    return (buffer.tier == schedule::Tier::host ? at_.host : at_.device) + buffer.offset;
  }
  /// All of a tier's memory behind its first bytes.
  LentMemory behind(const schedule::Arenas& bytes) const;
  device::ScratchFile& disk() const { return disk_; }

 private:
  device::Memory device_, host_;
  LentMemory at_;
  mutable device::ScratchFile disk_;  ///< as memory is: constant is where it is, not what it holds
};

/// Watches for writes outside of buffers: fills what a buffer holds at birth with NaN, and the
/// guard behind it with a pattern that must still be there after each task. In memory only.
class GuardCheck {
 public:
  GuardCheck(const schedule::Program& program, const Arena& arena);

  void before(int task) const;
  /// @throws Error(bug) naming task and buffer when a guard was written to
  void after(int task) const;

 private:
  const schedule::Program& program_;
  const Arena& arena_;
  std::vector<std::vector<schedule::BufferId>>
      born_;  ///< by task: buffers whose life begins with it
};

}  // namespace brume::engine
