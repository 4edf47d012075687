/// @file Ranks that hear from each other, so that one that stands still is found and named.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace brume::comm {

/// The present activity of a rank.
struct Doing {
  std::string text;          ///< text for people; peers receive up to 250 letters of it
  std::vector<int> awaited;  ///< ranks of the job without which it does not get any further
};

/// A rank that waits for another one.
struct WaitingRank {
  int rank;           ///< rank in the job
  std::string doing;  ///< the activity in which it waits
};

/// A rank that gave no sign of life.
struct SilentRank {
  int rank;                          ///< rank in the job
  std::string host;                  ///< its node
  double silence_s;                  ///< [s] since it was last heard of
  std::string doing;                 ///< its activity in its last heartbeat
  std::vector<WaitingRank> waiting;  ///< ranks that wait for it, in order, if they answered in time
};

/// A job that gets no further, though its ranks are alive.
struct Standstill {
  int rank;           ///< this rank in the job
  double still_s;     ///< [s] since this rank, or else any rank, was seen to get on
  bool waits;         ///< this rank, for another one, as all do; else for no rank, but for a file
  std::string doing;  ///< its activity
};

/// A thread on each rank sends a sign of life to the next rank every half second and listens to the
/// one before it, in a ring. One that has heard nothing for almost too long asks all others whether
/// they wait for the silent rank. So a process that is stopped, or whose machine is gone, is
/// noticed by one rank at any moment of a job. Time in which the listener itself was suspended does
/// not count.
///
/// A living rank that neither computes nor reads nor waits for others stands still, for instance
/// before a file of a server that does not answer. It says so itself. Ranks that wait for others
/// hear with each sign of life how long ago any rank got on, so they notice when all of them wait.
/// Whoever knows better when work stands still, as a Watchdog does, sets no limit for that.
class Heartbeat {
 public:
  /// Collective over all ranks of the job; MPI must be running.
  /// @param place       this rank's number in the job
  /// @param limit_s     [s] of silence after which `on_silence` is called, once, by the thread
  /// @param on_still    is called likewise by a rank that stands still, where there is a limit
  /// @throws Error(network) when MPI fails
  Heartbeat(int place, double limit_s, std::function<void(const SilentRank&)> on_silence,
            std::function<void(const Standstill&)> on_still = {});
  ~Heartbeat();  ///< waits until the rank before this one has come to its end, too: collective
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  void set_limit(double limit_s);  ///< [s]; any thread

  /// How long nothing may move from now on [s]; infinite at first. Any thread.
  void set_still_limit(double limit_s);

  /// Sets the function that gives the activity for each heartbeat and for ranks that ask; nothing
  /// by default. The heartbeat's thread calls `doing`, and never again once another one is set.
  void set_doing(std::function<Doing()> doing);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace brume::comm
