/// @file The one exception type; its failure is also the exit code of the job.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

namespace brume {

/// Why a job ends early. The value is the exit code; job templates branch on it.
enum class Failure : int {
  input = 2,       ///< the user's deck, plan, data or command line
  infeasible = 3,  ///< no plan fits the machine
  resource = 4,    ///< memory, cores or a device could not be had
  network = 5,     ///< MPI or NCCL failed, or a peer fell silent
  storage = 6,     ///< a file could not be written, or is there but could not be read
  bug = 70,        ///< a promise of our own code is broken
  interrupted =
      71,        ///< stopped at once by a second signal, or without any checkpoint: steps are lost
  stopped = 75,  ///< stopped by a signal with nothing lost: requeue me
};

/// An error that says what was expected, what was found, and where.
class Error : public std::runtime_error {
 public:
  Error(Failure failure, const std::string& what) : std::runtime_error(what), failure_(failure) {}
  template <typename... Args>
  Error(Failure failure, fmt::format_string<Args...> format, Args&&... args)
      : Error(failure, fmt::format(format, std::forward<Args>(args)...)) {}

  Failure failure() const { return failure_; }

 private:
  Failure failure_;
};

/// The message when memory ran out.
inline constexpr const char* memory_ran_out =
    "memory ran out: run fewer ranks on the node, or lower cluster.memory_gib and "
    "cluster.host_memory_gib";

/// The meaning of an exception for the job: an Error is itself, missing memory or threads are a
/// lack of resources, and everything else is a bug.
Error error_of(const std::exception& error);

/// Throws `Error(failure, message)` unless `holds`; the message is formatted only then.
template <typename... Args>
void require(bool holds, Failure failure, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) [[unlikely]]
    throw Error(failure, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace brume
