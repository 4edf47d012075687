#include "device/scratch_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/text.hpp"

namespace brume::device {

namespace {

constexpr std::int64_t bounce_bytes = std::int64_t{1} << 20;
constexpr std::int64_t most_bytes = std::int64_t{1} << 30;  ///< a call; the system takes 2 GiB

std::int64_t page_of(std::int64_t byte) {
  return byte / ScratchFile::page_bytes * ScratchFile::page_bytes;
}

std::string directory_or_default(const std::string& directory) {
  if (!directory.empty()) return directory;
  const char* given = std::getenv("TMPDIR");
  return given != nullptr && *given != '\0' ? given : "/tmp";
}

Descriptor create(const std::string& directory) {
  Descriptor file = unnamed_file(directory);
  require(file.get() >= 0, Failure::storage,
          "cannot make a scratch file in '{}': {}: name another directory as cluster.scratch",
          directory, last_error());
  return file;
}

/// Some file systems take the flag and refuse the transfer.
bool pass_cache_by(int file, std::byte* page) {
  const int flags = ::fcntl(file, F_GETFL);
  if (::fcntl(file, F_SETFL, flags | O_DIRECT) == 0) {
    if (::pread(file, page, std::size_t(ScratchFile::page_bytes), 0) == ScratchFile::page_bytes)
      return true;
    ::fcntl(file, F_SETFL, flags);
  }
  return false;
}

/// Calls until all bytes are done: the system may do less at once, or be interrupted.
template <typename Call>
void repeat(const char* verb, const std::string& directory, std::int64_t first_byte,
            std::int64_t bytes, const Call& call) {
  for (std::int64_t done = 0; done < bytes;) {
    const ssize_t now = call(done, std::size_t(std::min(bytes - done, most_bytes)));
    if (now < 0 && errno == EINTR) continue;
    require(now > 0, Failure::storage,
            "cannot {} {} bytes at {} of the scratch file in '{}': {} after {} bytes", verb, bytes,
            first_byte, directory, now < 0 ? last_error() : "it ends", done);
    done += now;
  }
}

}  // namespace

ScratchFile::ScratchFile(const std::string& directory, std::int64_t bytes)
    : directory_(directory_or_default(directory)),
      bytes_(round_up(bytes, page_bytes)),
      file_(bytes > 0 ? create(directory_) : Descriptor(-1)) {
  require(bytes >= 0, Failure::bug, "a scratch file of {} bytes was asked for", bytes);
  if (bytes == 0) return;
  const int cause = ::posix_fallocate(file_.get(), 0, bytes_);
  require(cause == 0, Failure::storage,
          "cannot reserve {} ({} bytes) on disk in '{}': {}: free space there, name another "
          "directory as cluster.scratch, or lower cluster.disk_gib",
          format_bytes(double(bytes_)), bytes_, directory_, last_error(cause));
  bounce_.reset(static_cast<std::byte*>(
      std::aligned_alloc(std::size_t(page_bytes), std::size_t(bounce_bytes))));
  if (!bounce_) throw std::bad_alloc();
  direct_ = pass_cache_by(file_.get(), bounce_.get());
}

void ScratchFile::Free::operator()(std::byte* pages) const { std::free(pages); }

/// Whether a transfer may begin without the detour, with whole pages.
bool ScratchFile::straight(std::int64_t first_byte, const std::byte* memory,
                           std::size_t bytes) const {
  if (!direct_) return true;
  return first_byte % page_bytes == 0 &&
         std::int64_t(reinterpret_cast<std::uintptr_t>(memory)) % page_bytes == 0 &&
         std::int64_t(bytes) >= page_bytes;
}

/// The place of the next bytes in the bounce buffer, at whose start lie the pages from `page` on.
std::span<std::byte> ScratchFile::window(std::int64_t first_byte, std::size_t bytes,
                                         std::int64_t& page) const {
  page = page_of(first_byte);
  const std::int64_t skipped = first_byte - page;
  return {bounce_.get() + skipped, std::min(bytes, std::size_t(bounce_bytes - skipped))};
}

void ScratchFile::read(std::int64_t first_byte, std::span<std::byte> to) {
  while (!to.empty()) {
    std::size_t now = to.size();
    if (straight(first_byte, to.data(), now)) {
      if (direct_) now = std::size_t(page_of(std::int64_t(now)));
      get(first_byte, to.data(), std::int64_t(now));
    } else {
      std::int64_t page = 0;
      const std::span<std::byte> part = window(first_byte, now, page);
      now = part.size();
      get(page, bounce_.get(), round_up(first_byte + std::int64_t(now), page_bytes) - page);
      std::memcpy(to.data(), part.data(), now);
    }
    first_byte += std::int64_t(now);
    to = to.subspan(now);
  }
}

void ScratchFile::write(std::int64_t first_byte, std::span<const std::byte> from) {
  while (!from.empty()) {
    std::size_t now = from.size();
    if (straight(first_byte, from.data(), now)) {
      if (direct_) now = std::size_t(page_of(std::int64_t(now)));
      put(first_byte, from.data(), std::int64_t(now));
    } else {
      std::int64_t page = 0;
      const std::span<std::byte> part = window(first_byte, now, page);
      now = part.size();
      const std::int64_t end = first_byte + std::int64_t(now), last = page_of(end);
      // What else is in the first and in the last page stays.
      if (first_byte != page) get(page, bounce_.get(), page_bytes);
      if (end != last && (last != page || first_byte == page))
        get(last, bounce_.get() + (last - page), page_bytes);
      std::memcpy(part.data(), from.data(), now);
      put(page, bounce_.get(), round_up(end, page_bytes) - page);
    }
    first_byte += std::int64_t(now);
    from = from.subspan(now);
  }
}

void ScratchFile::get(std::int64_t first_byte, std::byte* to, std::int64_t bytes) {
  repeat("read", directory_, first_byte, bytes, [&](std::int64_t done, std::size_t most) {
    return ::pread(file_.get(), to + done, most, first_byte + done);
  });
  drop_cache(first_byte, bytes);
}

void ScratchFile::put(std::int64_t first_byte, const std::byte* from, std::int64_t bytes) {
  repeat("write", directory_, first_byte, bytes, [&](std::int64_t done, std::size_t most) {
    return ::pwrite(file_.get(), from + done, most, first_byte + done);
  });
  // Only what is on the disk may be dropped; an error of the disk shows here too.
  const bool synced = direct_ || ::fdatasync(file_.get()) == 0;
  require(synced, Failure::storage, "cannot write {} bytes at {} of the scratch file in '{}': {}",
          bytes, first_byte, directory_, last_error());
  drop_cache(first_byte, bytes);
}

void ScratchFile::drop_cache(std::int64_t first_byte, std::int64_t bytes) {
  if (!direct_) ::posix_fadvise(file_.get(), first_byte, bytes, POSIX_FADV_DONTNEED);
}

}  // namespace brume::device
