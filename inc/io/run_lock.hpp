/// @file The lock of a run directory, which belongs to one job at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/descriptor.hpp"

namespace brume::io {

/// The batch system's number of this job; empty outside of one.
std::string batch_job();

/// Holds RUN_DIR/lock, a file that names its owner, for the life of a job; for one rank of it. The
/// system unlocks the file when its process ends, however that comes, so no lock outlives its job.
/// The file itself outlives a job that was killed, and counts how often that happened in a row.
class RunLock {
 public:
  /// Jobs that may be killed after one another without a new checkpoint between them.
  static constexpr int most_starts = 3;

  /// How long to wait for an owner to end [s]: ranks of a killed job live on for a second, and
  /// where a node died, a network file system keeps the lock of a requeued job for minutes.
  struct Patience {
    double others_s = 5.0;
    double own_job_s = 300.0;  ///< the owner is an earlier turn of the same job
  };

  /// Makes the directory if it is missing and takes its lock. Where the file system has no locks,
  /// it says so in the log and goes on.
  ///
  /// @throws Error(input)    naming host, process and job of the owner
  /// @throws Error(storage)  when the directory or the file cannot be made
  RunLock(const std::filesystem::path& directory, const Patience& patience);
  explicit RunLock(const std::filesystem::path& directory) : RunLock(directory, Patience{}) {}
  ~RunLock();  ///< removes the file, because this job has not been killed
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// Removes the file of the lock that this process holds, as its end does: for a handler of
  /// signals.
  static void remove_held() noexcept;

  /// Removes what killed jobs left unfinished in the directory, and notes that this one goes on
  /// after `step` steps.
  /// @throws Error(resource) when the last `most_starts` jobs began there too and were killed
  void begin(std::int64_t step);

 private:
  void write() const;

  std::filesystem::path path_;
  Descriptor file_;
  std::int64_t step_ = -1;  ///< first step of this directory's last job
  int starts_ = 0;          ///< how many jobs in a row did
  bool keeps_file_ = false;
};

}  // namespace brume::io
