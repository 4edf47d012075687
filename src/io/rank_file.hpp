/// @file rank-R.h5: what one rank contributes to a checkpoint.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.hpp"
#include "files.hpp"
#include "hdf5_file.hpp"
#include "io/checkpoint.hpp"

namespace brume::io {

/// Values are written and read in pieces of so many, so that memory does not grow with slabs.
inline constexpr std::int64_t piece_elements = std::int64_t{1} << 21;

/// Writes a rank's file.
///
/// @param slabs  as they are described in the file; their memory is not used
void write_rank_file(NewFile& file, std::int64_t step, int rank,
                     const std::vector<engine::Slab>& slabs, const GetValues& get_values);

/// A rank's file, open for reading.
///
/// @throws Error(storage)  from every call, when the file and the manifest disagree
class RankFile {
 public:
  /// @param file  whose hash was checked
  RankFile(const Descriptor& file, std::string name);

  /// Values of slab n, as the manifest describes it, from its element `first` on: up to element
  /// `end`, or so many as a piece has. They last until the next call.
  std::span<const float> piece(std::size_t n, const engine::Slab& slab, std::int64_t first,
                               std::int64_t end);

 private:
  std::string name_;
  Hdf5Reader reader_;
  std::vector<float> buffer_;
};

}  // namespace brume::io
