/// @file Whether this process gets on: it computes, reads from a disk, or hears from other ranks.
#pragma once

#include <cstdint>

namespace brume::comm {

/// Looks at the process from a thread of its own, whose work does not count. A thread that waits
/// for other ranks asks for them all the time, so meanwhile only what is heard from them counts.
class Movement {
 public:
  Movement();

  struct Seen {
    bool moved;  ///< since it was last seen to, or to wait
    bool waits;  ///< for other ranks
  };
  Seen look();

 private:
  double cpu_s_;         ///< of all other threads, when the process was last seen to get on
  std::int64_t blocks_;  ///< read from disks and other machines by then
  std::uint64_t waits_;  ///< for other ranks that were over by then
};

}  // namespace brume::comm
