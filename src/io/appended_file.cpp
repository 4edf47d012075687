#include "io/appended_file.hpp"

#include <fcntl.h>
#include <sys/file.h>

#include "base/files.hpp"
#include "base/path.hpp"

namespace brume::io {

AppendedFile::AppendedFile(const std::filesystem::path& path)
    : name_(path.string()),
      file_(::open(followed(path).c_str(),
                   O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0640)) {
  require(file_.get() >= 0, Failure::storage, "{}: cannot be opened: {}", name_, last_error());
  bytes_ = length(file_);
}

bool AppendedFile::lock() {
  return ::flock(file_.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

void AppendedFile::append(std::string_view record) {
  try {
    write_all(file_, as_bytes(record), name_);
    bytes_ += std::int64_t(record.size());
  } catch (...) {
    cut(bytes_);
    throw;
  }
}

void AppendedFile::cut(std::int64_t bytes) {
  const int result = ::ftruncate(file_.get(), bytes);
  require(result == 0, Failure::storage, "{}: cannot be cut: {}", name_, last_error());
  bytes_ = bytes;
}

}  // namespace brume::io
