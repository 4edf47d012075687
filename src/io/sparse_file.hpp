/// @file A file in memory that HDF5 makes, of which only what was written takes memory.
#pragma once

#include <hdf5.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace brume::io {

/// Bytes of a file. What nobody wrote reads as zero.
class SparseFile {
 public:
  void write(std::int64_t first, std::span<const std::byte> bytes);
  void read(std::int64_t first, std::span<std::byte> bytes) const;
  void set_length(std::int64_t bytes) { length_ = bytes; }
  std::int64_t length() const { return length_; }  ///< bytes

 private:
  std::int64_t length_ = 0;
  std::map<std::int64_t, std::vector<std::byte>> blocks_;  ///< by their number
};

/// Makes HDF5 create an empty file in `file`, which must outlive the handle. The caller has the
/// turn (Hdf5Turn).
///
/// @return  the handle; negative when HDF5 fails
hid_t create_hdf5(SparseFile& file);

}  // namespace brume::io
