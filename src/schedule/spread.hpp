/// @file Keeps buffers from waiting for bytes that another one has just left.
#pragma once

#include <cstdint>
#include <span>

#include "base/deadline.hpp"
#include "schedule/pack.hpp"

namespace brume::schedule {

/// Moves packed parcels, in the order of their lives, to free bytes below `end`: each to those that
/// tasks it would have to wait for have left the longest time ago. Tasks on the compute channel run
/// in order, so a parcel that these fill waits for transfers only.
///
/// @throws OutOfTime when the deadline passes
void spread(std::span<Parcel> parcels, std::int64_t end, const Deadline& deadline);

}  // namespace brume::schedule
