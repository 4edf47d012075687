#include "base/files.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <random>
#include <system_error>

#include "base/path.hpp"

namespace brume {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t early_bytes = std::size_t{1} << 20;  ///< that go to the disk at once
constexpr std::string_view unfinished_begin = "brume-";
constexpr std::string_view unfinished_end = ".tmp";
constexpr std::size_t unfinished_letters = 12;
constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyz0123456789";

/// Arguments are evaluated in any order, so a call of the system stands before its error is asked
/// for.
void check(bool done, const std::string& name, const char* what) {
  if (!done) throw Error(Failure::storage, "{}: {}: {}", name, what, last_error());
}

/// A name that nobody can guess.
std::string unfinished_name() {
  std::random_device random;
  std::uniform_int_distribution<std::size_t> any(0, letters.size() - 1);
  std::string name(unfinished_begin);
  for (std::size_t i = 0; i < unfinished_letters; ++i) name += letters[any(random)];
  return name.append(unfinished_end);
}

bool is_unfinished_name(const std::string& name) {
  if (!name.starts_with(unfinished_begin) || !name.ends_with(unfinished_end) ||
      name.size() != unfinished_begin.size() + unfinished_letters + unfinished_end.size())
    return false;
  const std::string_view middle =
      std::string_view(name).substr(unfinished_begin.size(), unfinished_letters);
  return middle.find_first_not_of(letters) == std::string_view::npos;
}

/// Refuses what somebody may have laid out in a folder that everybody may write to.
void require_trusted(const struct stat& status, const std::string& name, const fs::path& at) {
  struct stat folder = {};
  const fs::path parent = at.parent_path();
  const bool everybodys = ::stat(parent.empty() ? "." : parent.c_str(), &folder) == 0 &&
                          (folder.st_mode & S_IWOTH) != 0;
  require(
      !everybodys || status.st_uid == ::geteuid() || status.st_uid == folder.st_uid,
      Failure::storage,
      "{}: {} is a link or a pipe of another user (uid {}) in a folder that everybody may write "
      "to: name another file",
      name, at.string(), status.st_uid);
}

/// Whether something is there that a file must not take the place of.
bool is_special(const fs::path& target, const std::string& name) {
  struct stat status = {};
  if (::lstat(target.c_str(), &status) != 0 || S_ISREG(status.st_mode)) return false;
  const bool device = S_ISCHR(status.st_mode) || S_ISBLK(status.st_mode);
  if (!device) require_trusted(status, name, target);  // only root makes devices
  return true;
}

/// What failed where an input was not opened, by errno.
Failure unopened_input(int code) {
  switch (code) {
    case EMFILE:
    case ENFILE:
    case ENOMEM: return Failure::resource;
    case EACCES:
    case EPERM:
    case EIO:
    case ESTALE:
    case ETIMEDOUT: return Failure::storage;
    default: return Failure::input;
  }
}

}  // namespace

std::string last_error(int code) { return std::generic_category().message(code); }

Error unopened(const std::string& name, Failure failure) {
  const int code = errno;
  return {failure == Failure::input ? unopened_input(code) : failure,
          fmt::format("{}: cannot be opened: {}{}", name, last_error(code),
                      code == EMFILE ? ". Raise the limit by ulimit -n" : "")};
}

fs::path followed(const fs::path& path) {
  constexpr int max_links = 40;  // as the system's
  fs::path at = path;
  for (int links = 0; links < max_links; ++links) {
    struct stat status = {};
    if (::lstat(at.c_str(), &status) != 0 || !S_ISLNK(status.st_mode)) return at;
    require_trusted(status, path.string(), at);
    // A link in /proc leads to an open file, which may have no name.
    if (at.native().starts_with("/proc/")) return at;
    std::error_code error;
    at = at.parent_path() / fs::read_symlink(at, error);
    require(!error, Failure::storage, "{}: its link cannot be read: {}", path.string(),
            error.message());
  }
  throw Error(Failure::storage, "{}: leads through more than {} links", path.string(), max_links);
}

bool has_shell_word(std::string_view path) {
  const auto begins_name = [](unsigned char c) { return std::isalpha(c) || c == '_' || c == '{'; };
  for (std::size_t i = 1; i < path.size(); ++i)
    if (path[i - 1] == '$' && begins_name(static_cast<unsigned char>(path[i]))) return true;
  return path.starts_with('~');
}

OutputFile::OutputFile(const fs::path& path)
    : name_(path.string()), target_(followed(path)), file_(-1) {
  if (is_special(target_, name_)) {
    // Appending: a pipe or a terminal takes it, and standard output may be a file with a beginning.
    file_ = Descriptor(::open(target_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY));
    check(file_.get() >= 0, name_, "cannot be opened");
    return;
  }
  do {
    temporary_ = target_.parent_path() / unfinished_name();
    file_ = Descriptor(
        ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0640));
  } while (file_.get() < 0 && errno == EEXIST);
  if (file_.get() >= 0) {
    ::flock(file_.get(), LOCK_EX | LOCK_NB);  // until it has its name, or the process ends
    return;
  }
  temporary_.clear();
  check(false, name_, "cannot be created");
}

OutputFile::~OutputFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void OutputFile::write(std::span<const std::byte> bytes) {
  write_all(file_, bytes, name_);
  // The disk begins while the next bytes are made, so that commit() has little to wait for.
  if (bytes.size() >= early_bytes)
    ::sync_file_range(file_.get(), written_, off_t(bytes.size()), SYNC_FILE_RANGE_WRITE);
  written_ += std::int64_t(bytes.size());
}

void OutputFile::write_at(std::int64_t first, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(file_.get(), bytes.data(), bytes.size(), first);
    if (written < 0 && errno == EINTR) continue;
    check(written >= 0, name_, "cannot be written");
    bytes = bytes.subspan(std::size_t(written));
    first += written;
  }
}

void OutputFile::commit() {
  const bool in_place = temporary_.empty();
  if (!in_place) sync(file_, name_);
  const Descriptor locked(in_place ? -1 : ::fcntl(file_.get(), F_DUPFD_CLOEXEC, 0));
  close(file_, name_);
  if (in_place) return;
  check(::rename(temporary_.c_str(), target_.c_str()) == 0, name_, "cannot be replaced");
  temporary_.clear();
  sync_directory(target_.parent_path());
}

void write_file(const fs::path& path, std::span<const std::byte> bytes) {
  OutputFile file(path);
  file.write(bytes);
  file.commit();
}

void write_file(const fs::path& path, std::string_view text) { write_file(path, as_bytes(text)); }

void remove_unfinished(const fs::path& directory) {
  std::error_code error;
  std::vector<fs::path> found;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error))
    if (is_unfinished_name(at->path().filename().string())) found.push_back(at->path());
  for (const fs::path& path : found) {
    const Descriptor file(::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) ::unlink(path.c_str());
  }
}

void write_all(const Descriptor& file, std::span<const std::byte> bytes, const std::string& name) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    check(written >= 0, name, "cannot be written");
    bytes = bytes.subspan(std::size_t(written));
  }
}

Descriptor unnamed_file(const fs::path& directory) {
  std::string path = (directory / "brume-scratch-XXXXXX").string();
  Descriptor file(::mkostemp(path.data(), O_CLOEXEC));
  if (file.get() >= 0) ::unlink(path.c_str());
  return file;
}

void sync(const Descriptor& file, const std::string& name) {
  check(::fsync(file.get()) == 0, name, "cannot be synced");
}

void close(Descriptor& file, const std::string& name) {
  check(file.close(), name, "cannot be closed");
}

Descriptor open_regular(const fs::path& path, Failure failure, Links links) {
  // O_NONBLOCK: a pipe without a writer must not hang the job.
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | (links == Links::refuse ? O_NOFOLLOW : 0);
  Descriptor file(::open(path.c_str(), flags));
  if (file.get() < 0) throw unopened(path.string(), failure);
  struct stat status = {};
  const bool known = ::fstat(file.get(), &status) == 0;
  require(known && S_ISREG(status.st_mode), failure, "{}: is not a regular file, but a {}",
          path.string(), S_ISDIR(status.st_mode) ? "folder" : "pipe or a device");
  return file;
}

std::int64_t length(const Descriptor& file) {
  struct stat status = {};
  require(::fstat(file.get(), &status) == 0, Failure::bug, "a file has no length");
  return status.st_size;
}

std::size_t read_at(const Descriptor& file, std::int64_t first, std::span<std::byte> room,
                    const std::string& name) {
  std::size_t filled = 0;
  while (filled < room.size()) {
    const ssize_t got = ::pread(file.get(), room.data() + filled, room.size() - filled,
                                off_t(first + std::int64_t(filled)));
    if (got < 0 && errno == EINTR) continue;
    check(got >= 0, name, "cannot be read");
    if (got == 0) break;
    filled += std::size_t(got);
  }
  return filled;
}

Bytes read_file(const fs::path& path, Failure failure, std::int64_t max_bytes, Links links) {
  const Descriptor file = open_regular(path, failure, links);
  const std::int64_t bytes = length(file);
  require(bytes <= max_bytes, failure, "{}: has {} bytes, expected at most {}", path.string(),
          bytes, max_bytes);
  Bytes content(std::size_t(bytes), std::byte{});
  content.resize(read_at(file, 0, content, path.string()));
  return content;
}

void make_directory(const fs::path& path) {
  std::error_code ignored;
  if (path.empty() || fs::is_directory(path, ignored)) return;
  make_directory(path.parent_path());
  const bool made = ::mkdir(path.c_str(), 0750) == 0;
  const int cause = errno;
  if (made || fs::is_directory(path, ignored)) return;
  errno = cause;
  check(false, path.string(), "the directory cannot be made");
}

void rename_to(const fs::path& from, const fs::path& to) {
  check(::rename(from.c_str(), to.c_str()) == 0, from.string(),
        ("cannot be renamed to " + to.string()).c_str());
}

void sync_directory(const fs::path& path) {
  const Descriptor directory(
      ::open(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const bool opened = directory.get() >= 0, synced = opened && ::fsync(directory.get()) == 0;
  // Some file systems know no fsync of a directory: there is nothing more to do.
  const bool unknown = opened && (errno == EINVAL || errno == ENOTSUP || errno == ENOSYS);
  check(synced || unknown, path.string(), "the directory cannot be synced");
}

}  // namespace brume
