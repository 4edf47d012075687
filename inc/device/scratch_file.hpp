/// @file A rank's memory on disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/descriptor.hpp"

namespace brume::device {

/// A file without a name in a scratch directory: it goes with its owner, however that ends. Its
/// bytes are reserved at once, and are zero until they are written.
///
/// Transfers pass by the page cache where the file system lets them, else the cache is emptied
/// behind them: what lies on disk takes no host memory. Where memory and offset begin at pages they
/// take no detour. One thread at a time.
class ScratchFile {
 public:
  static constexpr std::int64_t page_bytes = 4096;

  /// @param directory  empty: $TMPDIR, else /tmp
  /// @param bytes      0: no file
  /// @throws Error(storage) naming directory and bytes when they cannot be had there
  ScratchFile(const std::string& directory, std::int64_t bytes);

  std::int64_t bytes() const { return bytes_; }

  /// @throws Error(storage) naming directory, offset and bytes when the disk fails
  void read(std::int64_t first_byte, std::span<std::byte> to);
  void write(std::int64_t first_byte, std::span<const std::byte> from);

 private:
  bool straight(std::int64_t first_byte, const std::byte* memory, std::size_t bytes) const;
  std::span<std::byte> window(std::int64_t first_byte, std::size_t bytes, std::int64_t& page) const;
  void get(std::int64_t first_byte, std::byte* to, std::int64_t bytes);
  void put(std::int64_t first_byte, const std::byte* from, std::int64_t bytes);
  void drop_cache(std::int64_t first_byte, std::int64_t bytes);

  std::string directory_;
  std::int64_t bytes_ = 0;
  Descriptor file_;
  bool direct_ = false;  ///< past the page cache
  struct Free {
    void operator()(std::byte* pages) const;
  };
  std::unique_ptr<std::byte[], Free> bounce_;  ///< pages on their way to or from other memory
};

}  // namespace brume::device
