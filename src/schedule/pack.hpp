/// @file Packs intervals of bytes with known lives into as few bytes as it can: offline dynamic
/// storage allocation.
#pragma once

#include <cstdint>
#include <span>

#include "base/deadline.hpp"

namespace brume::schedule {

/// Bytes that are needed from a first to a last task, side by side.
struct Parcel {
  int first_task, last_task;
  std::int64_t bytes;
  std::int64_t offset = 0;  ///< set by pack()

  bool meets(const Parcel& other) const {
    return first_task <= other.last_task && other.first_task <= last_task;
  }
  std::int64_t end() const { return offset + bytes; }
};

/// Gives parcels that meet different bytes. First fit in several orders; then those at the top of
/// the best one, and what they stand on, choose in other orders, until the end is within 0.5 % of
/// the bytes that live at once or the effort is spent. Always the same for the same parcels.
///
/// @param beside_bytes  what lives beside all of them, for the 0.5 %
/// @param tight         false: only first fit
/// @return the end of the last one
/// @throws OutOfTime when the deadline passes
std::int64_t pack(std::span<Parcel> parcels, std::int64_t beside_bytes, bool tight = true,
                  const Deadline& deadline = {});

}  // namespace brume::schedule
