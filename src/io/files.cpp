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
  write_all(descriptor_, bytes, name_);
}

void NewFile::sync() {
  require(::fsync(descriptor_.get()) == 0, Failure::storage, "{}: cannot be synced: {}", name_,
          last_error());
}

void NewFile::close() {
  require(descriptor_.close(), Failure::storage, "{}: cannot be closed: {}", name_, last_error());
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

}  // namespace brume::io
