/// @file Ranks that hear from each other, so that one that stands still is found and named.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace brume::comm {

/// What a rank does at the moment.
struct Doing {
  std::string text;          ///< for people; others hear up to 250 letters of it
  std::vector<int> awaited;  ///< ranks of the job without which it does not get any further
};

/// A rank that waits for another one.
struct WaitingRank {
  int rank;           ///< in the job
  std::string doing;  ///< in which it waits
};

/// A rank that gave no sign of life.
struct SilentRank {
  int rank;                          ///< in the job
  std::string host;                  ///< where it runs
  double silence_s;                  ///< [s] since it was last heard of
  std::string doing;                 ///< what it did at its last sign, as it said
  std::vector<WaitingRank> waiting;  ///< for it, in their order, as far as they answered in time
};

/// A thread on each rank sends a sign of life to the next rank every half second and listens to the
/// one before it, in a ring. One that has heard nothing for almost too long asks all others whether
/// they wait for the silent rank. So a process that is stopped, or whose machine is gone, is
/// noticed by one rank at any moment of a job; what a living process waits for is the Watchdog's
/// matter. Time in which the listener itself was suspended does not count.
class Heartbeat {
 public:
  /// Collective over all ranks of the job; MPI must be running.
  /// @param place       this rank's number in the job
  /// @param limit_s     [s] of silence after which `on_silence` is called, once, by the thread
  /// @throws Error(network) when MPI fails
  Heartbeat(int place, double limit_s, std::function<void(const SilentRank&)> on_silence);
  ~Heartbeat();  ///< waits until the rank before this one has come to its end, too: collective
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  void set_limit(double limit_s);  ///< [s]; any thread

  /// What this rank says with each sign of life that it does, and answers those that ask; nothing
  /// by default. `doing` is called by the heartbeat's thread, and never again once another one is
  /// set.
  void set_doing(std::function<Doing()> doing);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace brume::comm
