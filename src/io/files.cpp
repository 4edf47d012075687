#include "files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <system_error>
#include <utility>

namespace brume::io {
namespace {

namespace fs = std::filesystem;

std::string hexadecimal(XXH128_hash_t hash) {
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

/// @return  whether the file's bytes go past the system's cache from now on
bool pass_cache_by(const Descriptor& file, bool wanted) {
  const int flags = ::fcntl(file.get(), F_GETFL);
  return ::fcntl(file.get(), F_SETFL, wanted ? flags | O_DIRECT : flags & ~O_DIRECT) == 0 && wanted;
}

/// The digest of the first `bytes` of a file, or of fewer when it ends before.
Digest digest_of(const Descriptor& file, std::int64_t bytes, const std::string& name,
                 bool direct = false) {
  const DirectBuffer buffer;
  Hasher hasher;
  for (std::int64_t at = 0; at < bytes;) {
    const auto room =
        buffer.room().first(std::size_t(std::min(std::int64_t(DirectBuffer::bytes), bytes - at)));
    if (direct &&
        (room.size() < DirectBuffer::bytes ||
         ::pread(file.get(), room.data(), room.size(), off_t(at)) != ssize_t(room.size())))
      direct = pass_cache_by(file, false);
    const std::size_t got = direct ? room.size() : read_at(file, at, room, name);
    if (got == 0) break;
    hasher.add(room.first(got));
    at += std::int64_t(got);
  }
  return hasher.digest();
}

/// Moves a name of `directory` to its folder `aside`.
void move_aside(const fs::path& directory, const fs::path& aside, const fs::path& name) {
  const fs::path from = directory / name, to = directory / aside / name;
  make_directory(to.parent_path());
  if (::rename(from.c_str(), to.c_str()) == 0) return;
  if (errno != EXDEV || !name.has_parent_path()) return rename_to(from, to);
  std::error_code error;
  const fs::path there = fs::canonical(from.parent_path(), error);
  if (!error) make_directory(there / aside);
  if (!error) fs::remove(to.parent_path(), error);
  if (!error) fs::create_directory_symlink(there / aside, to.parent_path(), error);
  require(!error, Failure::storage, "{}: cannot become a link to {}: {}", to.parent_path().string(),
          (there / aside).string(), error.message());
  rename_to(from, to);
  sync_directory(there);
}

constexpr std::string_view seal_begin = "brume xxh3_128 ";

std::string seal_line(const Digest& digest) {
  return fmt::format("{}{}\n", seal_begin, digest.hash);
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

DirectBuffer::DirectBuffer() : memory_(static_cast<std::byte*>(std::aligned_alloc(4096, bytes))) {
  if (!memory_) throw std::bad_alloc();
}

void DirectBuffer::Free::operator()(std::byte* memory) const { std::free(memory); }

NewFile::NewFile(const fs::path& path)
    : name_(path.string()),
      descriptor_(
          ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0640)) {
  require(descriptor_.get() >= 0, Failure::storage, "{}: cannot be created: {}", name_,
          last_error());
  direct_ = pass_cache_by(descriptor_, true);
}

void NewFile::write(std::span<const std::byte> bytes) {
  hasher_.add(bytes);
  while (!bytes.empty()) {
    const auto room = buffer_.room().subspan(filled_);
    const auto part = bytes.first(std::min(bytes.size(), room.size()));
    std::ranges::copy(part, room.begin());
    filled_ += part.size();
    bytes = bytes.subspan(part.size());
    if (filled_ == DirectBuffer::bytes) flush();
  }
}

void NewFile::flush() {
  std::span<const std::byte> rest = buffer_.room().first(std::exchange(filled_, 0));
  if (direct_ && rest.size() == DirectBuffer::bytes) {
    const ssize_t done = ::write(descriptor_.get(), rest.data(), rest.size());
    rest = rest.subspan(std::size_t(std::max<ssize_t>(done, 0)));
    written_ += std::max<ssize_t>(done, 0);
  }
  if (rest.empty()) return;
  // The file's end, or a file system that refuses after all, or a failure that shows once more.
  direct_ = direct_ && pass_cache_by(descriptor_, false);
  write_all(descriptor_, rest, name_);
  // The disk works from now on, and sync() waits for the rest only; where it cannot, nothing is
  // lost.
  ::sync_file_range(descriptor_.get(), written_, off_t(rest.size()), SYNC_FILE_RANGE_WRITE);
  written_ += std::int64_t(rest.size());
}

void NewFile::sync() {
  flush();
  brume::sync(descriptor_, name_);
}

void NewFile::close() { brume::close(descriptor_, name_); }

Digest digest(std::span<const std::byte> bytes) {
  Hasher hasher;
  hasher.add(bytes);
  return hasher.digest();
}

Digest digest_of_file(const fs::path& path, bool from_disk) {
  const Descriptor file = open_regular(path, Failure::storage);
  if (from_disk) ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  return digest_of(file, length(file), path.string(), from_disk && pass_cache_by(file, true));
}

void seal(Bytes& file) {
  const std::string line = seal_line(digest(file));
  const auto bytes = as_bytes(line);
  file.insert(file.end(), bytes.begin(), bytes.end());
}

std::int64_t check_seal(const Descriptor& file, const std::string& name, Failure failure) {
  std::string line = seal_line(digest({}));
  const std::int64_t bytes = length(file) - std::int64_t(line.size());
  require(bytes >= 0, failure, "{}: is damaged: it has no hash at its end", name);
  const std::string expected = seal_line(digest_of(file, bytes, name));
  read_at(file, bytes, std::as_writable_bytes(std::span(line)), name);
  require(line.starts_with(seal_begin), failure,
          "{}: is damaged, or of an older version: it has no hash at its end", name);
  require(line == expected, failure, "{}: is damaged: the hash at its end does not fit", name);
  return bytes;
}

fs::path set_aside(const fs::path& directory, std::string_view reason,
                   std::span<const fs::path> names) {
  const auto taken = [&](const fs::path& aside) {
    std::error_code error;
    return fs::exists(fs::symlink_status(directory / aside, error)) ||
           std::ranges::any_of(names, [&](const fs::path& name) {
             return fs::exists(directory / name.parent_path() / aside, error);
           });
  };
  fs::path aside;
  for (int number = 1; aside.empty() || taken(aside); ++number)
    aside = fmt::format("{}-{}", reason, number);
  for (const fs::path& name : names) move_aside(directory, aside, name);
  sync_directory(directory);
  return directory / aside;
}

}  // namespace brume::io
