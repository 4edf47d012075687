/// @file Packs intervals of bytes with known lives into as few bytes as it can: offline dynamic
/// storage allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/deadline.hpp"

namespace brume::schedule {

/// The last tasks that touch bytes; -1: none.
struct LastTasks {
  int compute = -1;   ///< task on the compute channel
  int transfer = -1;  ///< task on any other channel

  bool operator==(const LastTasks&) const = default;
};

/// Bytes that are needed from a first to a last task, side by side.
struct Parcel {
  int first_task, last_task;
  std::int64_t bytes;
  std::int64_t offset = 0;  ///< set by pack()
  /// True: moves to bytes that were left long before; false: stays where it was packed.
  bool moves = false;
  // For those that move:
  bool computed = true;  ///< the first task is on the compute channel
  LastTasks last = {};

  bool meets(const Parcel& other) const {
    return first_task <= other.last_task && other.first_task <= last_task;
  }
  /// Whether it is the same but for its offset.
  bool is_like(const Parcel& other) const {
    return first_task == other.first_task && last_task == other.last_task && bytes == other.bytes &&
           moves == other.moves && computed == other.computed && last == other.last;
  }
  std::int64_t end() const { return offset + bytes; }
};

/// How far to look for a lower end than that of first fit.
struct Effort {
  bool tight = true;              ///< false: no further than first fit
  std::int64_t enough_bytes = 0;  ///< until the end is this low, be it of first fit

  bool operator==(const Effort&) const = default;
};

/// Gives parcels that meet different bytes. First fit in several orders; then those at the top of
/// the best one, and what they stand on, choose in other orders, until the end is within 0.5 % of
/// the bytes that live at once, or within 64 KiB, or the effort is spent. Always the same for the
/// same parcels.
///
/// @param beside_bytes  what lives beside all of them, for the 0.5 %
/// @return the end of the last one
/// @throws OutOfTime when the deadline passes
std::int64_t pack(std::span<Parcel> parcels, std::int64_t beside_bytes, Effort effort = {},
                  const Deadline& deadline = {});

/// Remembers what pack() found: most ranks of a stage, and many plans of a search, have the same
/// parcels. For all threads.
class Packings {
 public:
  /// Result of pack().
  std::int64_t pack(std::span<Parcel> parcels, std::int64_t beside_bytes, Effort effort,
                    const Deadline& deadline);

 private:
  struct Known {
    std::int64_t beside_bytes;
    Effort effort;
    std::vector<Parcel> parcels;  ///< offsets are set
    std::int64_t end;

    bool is_of(std::span<const Parcel> parcels, std::int64_t beside_bytes, Effort effort) const;
  };

  std::mutex mutex_;
  std::unordered_multimap<std::size_t, Known> known_;  ///< known packings, by hash of their parcels
  std::size_t num_parcels_ = 0;                        ///< parcels of all known packings
};

}  // namespace brume::schedule
