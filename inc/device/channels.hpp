/// @file Channels of one rank: work on one channel runs in order, channels run beside each other.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/time.hpp"
#include "device/stream.hpp"

namespace brume::device {

/// The completion of everything enqueued on a channel before it was recorded.
struct Event {
  int channel = -1;
  std::int64_t sequence = 0;
  /// Stream of the channel, if it has one; its worker sets it.
  std::shared_ptr<Mark> mark = nullptr;
};

/// A worker thread per channel. On the host it does the work itself; on an accelerator it puts the
/// work into the channel's stream, and an event between two streams is waited for by the streams.
///
/// Work that throws ends the run: what is enqueued on any channel is then skipped, not executed,
/// `on_failure` is called once on the failing thread, and `synchronize` rethrows the exception.
/// Enqueue, record, wait, run and synchronize belong to one thread, the owner's.
class Channels {
 public:
  using Work = std::function<void()>;

  /// @param names       [channels] shown by debuggers; at most 15 characters count
  /// @param on_failure  told of the first failure, e.g. to release peers that wait for this rank
  /// @param streams     [channels] or none; null for a channel that works on the host
  explicit Channels(std::vector<std::string> names,
                    std::function<void(std::exception_ptr)> on_failure = {},
                    std::vector<std::unique_ptr<Stream>> streams = {});
  ~Channels();  ///< waits for running work, drops what has not started
  Channels(const Channels&) = delete;
  Channels& operator=(const Channels&) = delete;

  /// @param span  gets when the work ran, since start_clock(), once synchronize() returns; or null
  void enqueue(int channel, Work work, Span* span = nullptr);
  Event record(int channel);  ///< event after everything that is enqueued on `channel` so far
  void wait(int channel, const Event& event);  ///< later work on `channel` starts after `event`
  void synchronize();                          ///< all channels idle; rethrows the first failure
  void start_clock();                          ///< spans count from now; all channels must be idle

  /// Calls `give`, which enqueues, and synchronizes. What `give` throws, say for lack of memory, is
  /// a failure like one of the work: that may refer to whatever lives until this returns.
  template <typename Give>
  void run(const Give& give) {
    try {
      give();
    } catch (...) {
      fail(std::current_exception());
    }
    synchronize();
  }

  /// The span of the timed work that `channel` does now, null: none. Any thread; the span itself is
  /// not touched, and may be gone already.
  const Span* in_flight(int channel) const;

 private:
  void fail(std::exception_ptr thrown);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace brume::device
