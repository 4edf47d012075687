/// @file Files that a kill leaves either old or new, never between, and their hashes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/descriptor.hpp"
#include "base/error.hpp"

namespace brume::io {

using Bytes = std::vector<std::byte>;

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

/// Length and XXH3-128, as 32 hexadecimal digits.
struct Digest {
  std::int64_t bytes = 0;
  std::string hash;
  bool operator==(const Digest&) const = default;
};
Digest digest(std::span<const std::byte> bytes);
/// @param from_disk  whether to read a synced file from where it was written to, past the cache
/// @throws Error(storage)
Digest digest_of_file(const std::filesystem::path& path, bool from_disk);

/// A digest of bytes that come piece by piece.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  void add(std::span<const std::byte> bytes);
  Digest digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A file in the making. Its name must be free; nothing is promised before close() returned.
///
/// @throws Error(storage)  from every call, naming the file and the system's reason
class NewFile {
 public:
  explicit NewFile(const std::filesystem::path& path);

  void write(std::span<const std::byte> bytes);
  void sync();
  void close();  ///< a network file system may say only here that writing failed
  Digest digest() const { return hasher_.digest(); }  ///< of all that was written

 private:
  std::string name_;
  Descriptor descriptor_;
  Hasher hasher_;
};

/// Replaces the content of `path` by write, fsync and rename, through `path`.tmp.
/// @throws Error(storage)
void replace_file(const std::filesystem::path& path, std::span<const std::byte> bytes);

/// All of a regular file; symbolic links are not followed.
/// @throws Error(failure) when it cannot be read or is longer than `max_bytes`
Bytes read_file(const std::filesystem::path& path, Failure failure, std::int64_t max_bytes);

/// A regular file, open for reading; symbolic links are not followed. @throws Error(failure)
Descriptor open_regular(const std::filesystem::path& path, Failure failure);
std::int64_t length(const Descriptor& file);  ///< bytes

/// Reads from byte `first` on until `room` is full or the file ends. @return bytes read
/// @throws Error(failure)
std::size_t read_at(const Descriptor& file, std::int64_t first, std::span<std::byte> room,
                    const std::string& name, Failure failure);

/// Makes a directory and those above it. @throws Error(storage)
void make_directory(const std::filesystem::path& path);

/// Renames; an existing `to` of the same kind is replaced. @throws Error(storage)
void rename_to(const std::filesystem::path& from, const std::filesystem::path& to);

/// Makes names in a directory durable. @throws Error(storage)
void sync_directory(const std::filesystem::path& path);

}  // namespace brume::io
