/// @file Channels of one rank: work on one channel runs in order, channels run beside each other.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace brume::device {

/// The completion of everything enqueued on a channel before it was recorded.
struct Event {
  int channel = -1;
  std::int64_t sequence = 0;
};

/// A worker thread per channel (host backend).
///
/// Work that throws ends the run: what is enqueued on any channel is then skipped, not executed,
/// `on_failure` is called once on the failing thread, and `synchronize` rethrows the exception.
/// Enqueue, record, wait and synchronize belong to one thread, the owner's.
class Channels {
 public:
  using Work = std::function<void()>;

  /// @param names       [channels] shown by debuggers; at most 15 characters count
  /// @param on_failure  told of the first failure, e.g. to release peers that wait for this rank
  explicit Channels(std::vector<std::string> names,
                    std::function<void(std::exception_ptr)> on_failure = {});
  ~Channels();  ///< waits for running work, drops what has not started
  Channels(const Channels&) = delete;
  Channels& operator=(const Channels&) = delete;

  void enqueue(int channel, Work work);
  Event record(int channel);                   ///< after all that is enqueued on `channel` so far
  void wait(int channel, const Event& event);  ///< later work on `channel` starts after `event`
  void synchronize();                          ///< all channels idle; rethrows the first failure

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace brume::device
