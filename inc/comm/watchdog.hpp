/// @file Notices that the run stands still, because a peer fell silent or this rank hangs.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace brume::comm {

/// A thread that calls `on_silence` once when no `beat` came for `deadline_s`, nor for as long as
/// beats had come since the deadline was set: whoever works for longer than was thought may have to
/// wait as long for others who do the same. Time in which the process itself was suspended does not
/// count.
class Watchdog {
 public:
  /// @param deadline_s  [s] on the monotonic clock; counted from the last beat, to half a second
  /// @param on_silence  gets the seconds of silence; usually prints what is in flight and aborts
  Watchdog(double deadline_s, std::function<void(double silence_s)> on_silence);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void beat();                           ///< progress was made; from any thread
  void set_deadline(double deadline_s);  ///< e.g. a multiple of the median step time

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace brume::comm
