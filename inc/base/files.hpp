/// @file Reading and writing files: a failure or a kill leaves the old content or the new one.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/descriptor.hpp"
#include "base/error.hpp"

namespace brume {

using Bytes = std::vector<std::byte>;

/// The system's words for an error of its calls, as a rule of the last one of this thread.
std::string last_error(int code = errno);

/// The error, by errno, when the system did not open a file for reading. An input failed for want
/// of resources if the process may open no more files, and is storage if the system forbids it or
/// fails; no other name in a deck would help then. Any other failure stays as it is.
Error unopened(const std::string& name, Failure failure);

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}
inline std::string_view as_text(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A file in the making that takes the place of another, or of none, by commit(). Until then its
/// bytes lie beside the target under a name that nobody can guess, so that a failure leaves the
/// target as it was, and locked, so that remove_unfinished() leaves them alone.
///
/// A device or a pipe is never replaced, but written in place, and a link is followed. In a folder
/// that everybody may write to, links and pipes of users other than this one and the folder's owner
/// are refused: they may have been laid out to lead elsewhere. New files have the rights 0640
/// without those that the umask takes.
///
/// @throws Error(storage)  from every call, naming the file and the system's reason
class OutputFile {
 public:
  explicit OutputFile(const std::filesystem::path& path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();  ///< removes what was not committed

  void write(std::span<const std::byte> bytes);
  /// Overwrites bytes that were written before; a pipe or a device accepts none.
  void write_at(std::int64_t first, std::span<const std::byte> bytes);
  void commit();  ///< brings the bytes to the disk, then puts the file in its place

 private:
  std::string name_;
  std::filesystem::path target_;     ///< the path with its links followed
  std::filesystem::path temporary_;  ///< empty when written in place, or committed
  Descriptor file_;
  std::int64_t written_ = 0;  ///< bytes
};

/// Replaces the content of a file as OutputFile does. @throws Error(storage)
void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes);
void write_file(const std::filesystem::path& path, std::string_view text);

/// Removes what killed processes left of their OutputFiles in a folder, not what others are writing
/// there; a folder that is missing has none.
void remove_unfinished(const std::filesystem::path& directory);

/// Writes all bytes, in as many calls as it takes.
/// @throws Error(storage)
void write_all(const Descriptor& file, std::span<const std::byte> bytes, const std::string& name);

void sync(const Descriptor& file,
          const std::string& name);  ///< writes to the disk. @throws Error(storage)
/// A network file system may say only here that writing failed. @throws Error(storage)
void close(Descriptor& file, const std::string& name);

/// A file without a name, for reading and writing, which goes with its descriptor; negative, with
/// errno, where the directory takes none.
Descriptor unnamed_file(const std::filesystem::path& directory);

enum class Links { refuse, follow };

/// A regular file, open for reading. @throws `unopened`, or Error(failure) when it is none
Descriptor open_regular(const std::filesystem::path& path, Failure failure,
                        Links links = Links::refuse);
std::int64_t length(const Descriptor& file);  ///< bytes

/// Reads from byte `first` on until `room` is full or the file ends. @return bytes read
/// @throws Error(storage)
std::size_t read_at(const Descriptor& file, std::int64_t first, std::span<std::byte> room,
                    const std::string& name);

/// All of a regular file. @throws as `open_regular` and `read_at` do, and Error(failure) when it is
/// longer than `max_bytes`
Bytes read_file(const std::filesystem::path& path, Failure failure, std::int64_t max_bytes,
                Links links = Links::refuse);

/// Makes a directory and those above it, with the rights 0750 without those that the umask
/// takes.
/// @throws Error(storage)
void make_directory(const std::filesystem::path& path);

/// Renames; an existing `to` of the same kind is replaced. @throws Error(storage)
void rename_to(const std::filesystem::path& from, const std::filesystem::path& to);

/// Makes names in a directory durable. @throws Error(storage)
void sync_directory(const std::filesystem::path& path);

}  // namespace brume
