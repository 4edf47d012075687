/// @file Keeps buffers from waiting for bytes that another one has just left.
#pragma once

#include <cstdint>
#include <span>

#include "base/deadline.hpp"
#include "schedule/pack.hpp"

namespace brume::schedule {

/// Moves packed parcels to other free bytes below `end`, in the order of their lives: each to those
/// whose last users are the longest ago. One that is filled on the compute channel does not count
/// users on that channel, because it never waits for them.
///
/// @throws OutOfTime when the deadline passes
void spread(std::span<Parcel> parcels, std::int64_t end, const Deadline& deadline);

}  // namespace brume::schedule
