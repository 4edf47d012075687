#include "io/run_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "base/host.hpp"
#include "base/log.hpp"
#include "files.hpp"
#include "step_directories.hpp"

namespace brume::io {
namespace {

namespace fs = std::filesystem;

/// ", job ID", or nothing outside of a batch system.
std::string job_name() {
  const std::string job = batch_job();
  return job.empty() ? job : ", job " + job;
}

/// "host HOST, process PID, job ID", in the first line of the file.
std::string owner() {
  return fmt::format("host {}, process {}{}", host_name(), ::getpid(), job_name());
}

Descriptor open_lock(const fs::path& path) {
  Descriptor file(
      ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0640));
  require(file.get() >= 0, Failure::storage, "{}: cannot be opened: {}", path.string(),
          last_error());
  return file;
}

/// Whether the name still belongs to the file: an owner removes both at its end.
bool is_at(const Descriptor& file, const fs::path& path) {
  struct stat opened = {}, named = {};
  return ::fstat(file.get(), &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

std::string content(const Descriptor& file, const fs::path& path) {
  std::array<std::byte, 1024> bytes{};
  const std::size_t length = read_at(file, 0, bytes, path.string());
  return {reinterpret_cast<const char*>(bytes.data()), length};
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// @return the file with its lock, or nothing while another process has it
std::optional<Descriptor> try_lock(const fs::path& path) {
  for (;;) {
    Descriptor file = open_lock(path);
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return std::nullopt;
      if (errno == EINTR) continue;
      log::warn("{}: this file system has no locks ({}): nothing keeps a second job off",
                path.string(), last_error());
      return file;
    }
    if (is_at(file, path)) return file;
  }
}

/// @throws Error(input) when the owner does not end in time
Descriptor lock(const fs::path& path, const RunLock::Patience& patience) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  for (bool told = false;; told = true) {
    if (std::optional<Descriptor> file = try_lock(path)) return std::move(*file);
    const std::string owner = first_line(content(open_lock(path), path)), job = job_name();
    const double patience_s =
        !job.empty() && owner.ends_with(job) ? patience.own_job_s : patience.others_s;
    require(Clock::now() - start < std::chrono::duration<double>(patience_s), Failure::input,
            "{} belongs to another job ({}): wait until it has ended, or give this one another "
            "output.directory",
            path.parent_path().string(), owner);
    if (!told)
      log::info("{} belongs to another job ({}): waiting up to {:.0f} s for its end",
                path.parent_path().string(), owner, patience_s);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

std::atomic<const char*> held = nullptr;  ///< the file of the process's lock
static_assert(std::atomic<const char*>::is_always_lock_free);

Descriptor make_and_lock(const fs::path& path, const RunLock::Patience& patience) {
  make_directory(path.parent_path());
  return lock(path, patience);
}

}  // namespace

std::string batch_job() {
  for (const char* name : {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID"})
    if (const char* job = std::getenv(name); job != nullptr && *job != '\0') return job;
  return {};
}

RunLock::RunLock(const fs::path& directory, const Patience& patience)
    : path_(directory / "lock"), file_(make_and_lock(path_, patience)) {
  const std::string text = content(file_, path_);
  if (!text.empty()) {
    log::info("{}: the last job here was killed ({})", path_.string(), first_line(text));
    std::istringstream rest(text.substr(first_line(text).size()));
    if (!(rest >> step_ >> starts_)) step_ = -1, starts_ = 0;
  }
  write();
  held = path_.c_str();
}

RunLock::~RunLock() {
  held = nullptr;
  if (!keeps_file_) ::unlink(path_.c_str());
}

void RunLock::remove_held() noexcept {
  if (const char* const path = held) ::unlink(path);
}

void RunLock::begin(std::int64_t step) {
  const std::filesystem::path directory = path_.parent_path();
  remove_unfinished(directory);
  remove_unfinished(directory / "steps");
  remove_unfinished_steps(directory / "checkpoints");
  starts_ = step == step_ ? starts_ + 1 : 1;
  step_ = step;
  if (starts_ > most_starts) {
    keeps_file_ = true;
    held = nullptr;
    throw Error(Failure::resource,
                "{}: the last {} jobs began after step {} and were killed before they wrote a "
                "checkpoint: find out why (often memory ran out), then delete this file and start "
                "again",
                path_.string(), most_starts, step);
  }
  write();
}

void RunLock::write() const {
  const std::string text = fmt::format("{}\n{} {}\n", owner(), step_, starts_);
  const bool written = ::ftruncate(file_.get(), 0) == 0 &&
                       ::pwrite(file_.get(), text.data(), text.size(), 0) == ssize_t(text.size());
  require(written, Failure::storage, "{}: cannot be written: {}", path_.string(), last_error());
}

}  // namespace brume::io
