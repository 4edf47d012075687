/// @file rank-R.h5: what one rank contributes to a checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "engine/engine.hpp"
#include "files.hpp"

namespace brume::io {

/// Builds the image of a rank's file. Memory of each slab is given up as soon as it is in the
/// image.
///
/// @param slabs   as they are described in the file; `data` is not used
/// @param values  [slab, elements]
Bytes rank_image(std::int64_t step, int rank, const std::vector<engine::Slab>& slabs,
                 std::vector<std::vector<float>>& values);

/// Gives the values of some slabs of a rank's file.
///
/// @param image    whose hash was checked
/// @param name     of the file, for messages
/// @param slabs    all that the manifest says are in the file, in order
/// @param wanted   indices into `slabs`
/// @param use      called with each index and its values, which last for the call
/// @throws Error(storage)  when the file and the manifest disagree
void read_rank_image(Bytes image, const std::string& name, const std::vector<engine::Slab>& slabs,
                     const std::vector<std::size_t>& wanted,
                     const std::function<void(std::size_t, const std::vector<float>&)>& use);

}  // namespace brume::io
