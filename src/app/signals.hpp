/// @file Requests to stop: SIGUSR1 (from batch systems, before the time limit), SIGTERM, SIGINT;
/// and to save and go on: SIGUSR2.
#pragma once

namespace brume::app {

/// Lets requests to stop or to save wait in the process until release_signals(). May be called
/// before libraries have initialised themselves.
void hold_signals();
void release_signals();

/// Handles requests to stop while it lives, and releases those that were held; one in a process.
/// What comes after its end changes nothing: the process is at its end, too.
///
/// At first nothing can be lost, and a request ends the process at once with Failure::stopped.
/// After remember() a request is only noted, for the job to make a checkpoint. One request may
/// reach a process more than once, because mpirun forwards what a batch system sends to everyone:
/// only one that comes more than 2 s after the first is a second one. It ends the process at once
/// with Failure::interrupted. A process that ends at once removes its RunLock. After ignore()
/// requests change nothing: the process is at its end. A request to save is noted after remember()
/// only: before, there is nothing to save. A pipe that nobody reads gives an error, not a signal.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  void remember();
  void ignore();
  bool pending() const;  ///< a request to stop has been noted
  bool take_save();      ///< whether a request to save has been noted since the last call
};

}  // namespace brume::app
