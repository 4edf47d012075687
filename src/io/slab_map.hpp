/// @file Which elements of a checkpoint's slabs are which elements of this rank's.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/engine.hpp"

namespace brume::io {

/// Elements that lie side by side in two slabs.
struct Run {
  std::int64_t from;   ///< first, counted in the data of the source
  std::int64_t to;     ///< first, counted in the data of the destination
  std::int64_t count;  ///< elements
};

/// Whether a slab describes elements that its tensor has: 1 to 8 dimensions, the slice within the
/// tensor, the range within the slice.
bool is_sound(const engine::Slab& slab);

/// The elements that two sound slabs of one tensor share, in the order of the destination.
std::vector<Run> shared_runs(const engine::Slab& source, const engine::Slab& destination);

/// Whether runs reach every element of [0, elements) of their destination exactly once.
bool covers_once(std::vector<Run> runs, std::int64_t elements);

}  // namespace brume::io
