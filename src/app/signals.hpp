/// @file Signals that ask a job to stop: SIGUSR1 (batch systems, before the limit), SIGTERM,
/// SIGINT.
#pragma once

namespace brume::app {

/// While it lives the first signal is remembered; a second one ends the process at once.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  bool pending() const;
};

}  // namespace brume::app
