/// @file Streams of emulated devices, and what orders their work.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <thread>

#include "memory.hpp"

namespace brume::emulation {

/// What an event is recorded as: a place in a stream's work.
struct Moment {
  bool reached = false;
  std::chrono::steady_clock::time_point time = {};
  Clock clock = {};            ///< what is done then
  std::thread::id giver = {};  ///< the host's thread that gave the stream its work
  std::condition_variable reaching = {};
};

/// A thread that does a stream's work in order, now and then late.
///
/// Its clock is what is known to be done when a piece of work begins: all before it in the stream,
/// what the events that the stream waited for come after, and what the host had seen done when it
/// gave the work. A thread of the host that waits for work which another thread gave does so to
/// tell others, so all know from then on what it has seen. A thread that waits for work of its own
/// learns what its stream's order says anyway, and so only that thread knows.
class Stream {
 public:
  using Work = std::function<std::vector<Interval>()>;  ///< without the lock; what it touched

  /// @param of_thread  a thread's own, whose work is seen by all when the thread has waited for it
  explicit Stream(int device, bool of_thread = false);
  ~Stream();  ///< after all that it was given
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int device() const { return device_; }

  /// Unfinished pieces of work that meet other ranks, and the most blocks that any such piece
  /// takes on the device.
  std::atomic<int> meetings = 0;
  int most_blocks = 0;

  // All of these need the lock.
  void put(std::string_view name, Work work);
  std::shared_ptr<Moment> record();
  void wait(std::shared_ptr<Moment> moment);
  void finish(Locked& locked);  ///< blocks the host until all is done

  static void finish(Locked& locked, Moment& moment);  ///< blocks the host until it is reached
  static void finish_all(Locked& locked);              ///< the same for all, which orders nothing
  static const std::set<Stream*>& all();               ///< that there are now

 private:
  struct Operation {
    std::string_view name;
    Work work;  // one of these three
    std::shared_ptr<Moment> recorded, awaited;
    Clock seen_by_host;
  };
  void push(Operation operation);
  void serve();
  void drain(Locked& locked);

  const int device_;
  const bool of_thread_;
  int index_;  ///< in clocks
  bool ending_ = false;
  Clock clock_;
  std::thread::id giver_;  ///< of its last work
  std::deque<Operation> queue_;
  std::condition_variable arrived_, idle_;
  std::thread thread_;
};

}  // namespace brume::emulation
