#include "base/regular_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "base/descriptor.hpp"
#include "base/error.hpp"

namespace brume {

std::string read_regular_file(const std::string& path, std::size_t most_bytes) {
  // Without O_NONBLOCK a pipe that nobody writes to would never open.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  require(file.get() >= 0, Failure::input, "{}: cannot be read: {}", path, std::strerror(errno));
  struct stat about {};
  require(::fstat(file.get(), &about) == 0, Failure::input, "{}: cannot be read: {}", path,
          std::strerror(errno));
  require(S_ISREG(about.st_mode), Failure::input, "{}: must be a file, found {}", path,
          S_ISDIR(about.st_mode) ? "a folder" : "a pipe or a device");
  require(std::size_t(about.st_size) <= most_bytes, Failure::input,
          "{}: must be of at most {} bytes, found {}", path, most_bytes, about.st_size);
  std::string text(std::size_t(about.st_size), '\0');
  std::size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + filled, text.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    require(got >= 0, Failure::input, "{}: cannot be read: {}", path, std::strerror(errno));
    if (got == 0) break;
    filled += std::size_t(got);
  }
  text.resize(filled);
  return text;
}

}  // namespace brume
