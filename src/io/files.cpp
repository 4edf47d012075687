#include "files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <memory>
#include <new>
#include <system_error>

namespace brume::io {
namespace {

namespace fs = std::filesystem;

std::string last_error() { return std::generic_category().message(errno); }

std::string hexadecimal(XXH128_hash_t hash) {
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace

struct Hasher::State {
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> xxh{XXH3_createState(), &XXH3_freeState};
  std::int64_t bytes = 0;
};

Hasher::Hasher() : state_(std::make_unique<State>()) {
  if (!state_->xxh) throw std::bad_alloc();
  XXH3_128bits_reset(state_->xxh.get());
}

Hasher::~Hasher() = default;

void Hasher::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->xxh.get(), bytes.data(), bytes.size());
  state_->bytes += std::int64_t(bytes.size());
}

Digest Hasher::digest() const {
  return {state_->bytes, hexadecimal(XXH3_128bits_digest(state_->xxh.get()))};
}

NewFile::NewFile(const fs::path& path)
    : name_(path.string()),
      descriptor_(
          ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0640)) {
  require(descriptor_.get() >= 0, Failure::storage, "{}: cannot be created: {}", name_,
          last_error());
}

void NewFile::write(std::span<const std::byte> bytes) {
  hasher_.add(bytes);
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    require(written >= 0, Failure::storage, "{}: cannot be written: {}", name_, last_error());
    bytes = bytes.subspan(std::size_t(written));
  }
}

void NewFile::sync() {
  require(::fsync(descriptor_.get()) == 0, Failure::storage, "{}: cannot be synced: {}", name_,
          last_error());
}

void NewFile::close() {
  require(descriptor_.close(), Failure::storage, "{}: cannot be closed: {}", name_, last_error());
}

void replace_file(const fs::path& path, std::span<const std::byte> bytes) {
  fs::path temporary = path;
  temporary += ".tmp";
  ::unlink(temporary.c_str());  // of a killed job
  try {
    NewFile file(temporary);
    file.write(bytes);
    file.sync();
    file.close();
    rename_to(temporary, path);
  } catch (const Error&) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_directory(path.parent_path());
}

Descriptor open_regular(const fs::path& path, Failure failure) {
  // O_NONBLOCK: a pipe without a writer must not hang the job.
  Descriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  require(file.get() >= 0, failure, "{}: cannot be opened: {}", path.string(), last_error());
  struct stat status = {};
  require(::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode), failure,
          "{}: is not a regular file", path.string());
  return file;
}

std::int64_t length(const Descriptor& file) {
  struct stat status = {};
  require(::fstat(file.get(), &status) == 0, Failure::bug, "no length of a file: {}", last_error());
  return status.st_size;
}

std::size_t read_at(const Descriptor& file, std::int64_t first, std::span<std::byte> room,
                    const std::string& name, Failure failure) {
  std::size_t filled = 0;
  while (filled < room.size()) {
    const ssize_t got = ::pread(file.get(), room.data() + filled, room.size() - filled,
                                off_t(first + std::int64_t(filled)));
    if (got < 0 && errno == EINTR) continue;
    require(got >= 0, failure, "{}: cannot be read: {}", name, last_error());
    if (got == 0) break;
    filled += std::size_t(got);
  }
  return filled;
}

Bytes read_file(const fs::path& path, Failure failure, std::int64_t max_bytes) {
  const Descriptor file = open_regular(path, failure);
  const std::int64_t bytes = length(file);
  require(bytes <= max_bytes, failure, "{}: has {} bytes, expected at most {}", path.string(),
          bytes, max_bytes);
  Bytes content(std::size_t(bytes), std::byte{});
  content.resize(read_at(file, 0, content, path.string(), failure));
  return content;
}

Digest digest(std::span<const std::byte> bytes) {
  Hasher hasher;
  hasher.add(bytes);
  return hasher.digest();
}

Digest digest_of_file(const fs::path& path, bool from_disk) {
  const Descriptor file = open_regular(path, Failure::storage);
  if (from_disk) ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  Bytes buffer(std::size_t{1} << 20);
  Hasher hasher;
  for (std::int64_t at = 0;;) {
    const std::size_t got = read_at(file, at, buffer, path.string(), Failure::storage);
    if (got == 0) return hasher.digest();
    hasher.add(std::span(buffer).first(got));
    at += std::int64_t(got);
  }
}

void make_directory(const fs::path& path) {
  std::error_code ignored;
  if (path.empty() || fs::is_directory(path, ignored)) return;
  make_directory(path.parent_path());
  const bool made = ::mkdir(path.c_str(), 0750) == 0;
  const std::string reason = last_error();
  require(made || fs::is_directory(path, ignored), Failure::storage,
          "{}: the directory cannot be made: {}", path.string(), reason);
}

void rename_to(const fs::path& from, const fs::path& to) {
  require(::rename(from.c_str(), to.c_str()) == 0, Failure::storage,
          "{}: cannot be renamed to {}: {}", from.string(), to.string(), last_error());
}

void sync_directory(const fs::path& path) {
  const Descriptor directory(
      ::open(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems know no fsync of a directory and say EINVAL: there is nothing more to do.
  require(directory.get() >= 0 && (::fsync(directory.get()) == 0 || errno == EINVAL),
          Failure::storage, "{}: the directory cannot be synced: {}", path.string(), last_error());
}

}  // namespace brume::io
