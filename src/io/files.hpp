/// @file Hashes of files, files whose name is new, and what is set aside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/files.hpp"

namespace brume::io {

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

/// Appends a line with the hash of the file's bytes to them. HDF5 does not look beyond the end that
/// a file states, so that other programs read a sealed file as any other.
void seal(Bytes& file);
/// @return  bytes before the seal
/// @throws Error(failure)  when the file has no seal, or one that does not fit
std::int64_t check_seal(const Descriptor& file, const std::string& name, Failure failure);

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

/// A buffer that files can be written from and read into past the system's cache, whose pages would
/// take several times as long of a processor as hashes do.
class DirectBuffer {
 public:
  static constexpr std::size_t bytes = std::size_t{4} << 20;

  DirectBuffer();  ///< @throws std::bad_alloc
  std::span<std::byte> room() const { return {memory_.get(), bytes}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte[], Free> memory_;
};

/// A file in the making. Its name must be free; nothing is promised before close() returned.
///
/// @throws Error(storage)  from every call, naming the file and the system's reason
class NewFile {
 public:
  explicit NewFile(const std::filesystem::path& path);

  void write(std::span<const std::byte> bytes);
  void flush();  ///< gives the system what it does not have yet
  void sync();
  void close();  ///< a network file system may say only here that writing failed
  Digest digest() const { return hasher_.digest(); }  ///< of all that was written

 private:
  std::string name_;
  Descriptor descriptor_;
  Hasher hasher_;
  DirectBuffer buffer_;
  std::size_t filled_ = 0;    ///< bytes of the buffer
  std::int64_t written_ = 0;  ///< bytes of the file
  bool direct_;               ///< past the system's cache
};

/// Moves names of a directory to its folder <reason>-K, K the first free number. Names that lie on
/// another file system, as below a link, move to <reason>-K beside them, where the folder has a
/// link to.
/// @return  the folder
/// @throws Error(storage)
std::filesystem::path set_aside(const std::filesystem::path& directory, std::string_view reason,
                                std::span<const std::filesystem::path> names);

}  // namespace brume::io
