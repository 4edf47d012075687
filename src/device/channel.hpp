/// @file One worker with its queue, and how it waits without much loss of time.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "device/channels.hpp"

namespace brume::device {

/// Looks for a short while before the caller goes to sleep, giving its core away between looks.
/// Measured on a virtual machine: with a core to spare a hand-over takes 2-4 us, where waking a
/// sleeper on another core takes 25-40 us.
///
/// Beside busy threads of others the core comes back when their turn is over, milliseconds later,
/// while a sleeper that is woken goes before them. Where that happened nobody looks for a second:
/// measured on two cores beside two busy threads, hand-overs take 0.04 ms instead of 3 ms.
template <typename Condition>
void look_briefly(const Condition& holds) {
  using Clock = std::chrono::steady_clock;
  static std::atomic<Clock::duration> sleeps_until{};  // since the clock's epoch
  const auto begin = Clock::now();
  if (begin.time_since_epoch() < sleeps_until.load(std::memory_order_relaxed)) return;
  for (auto last = begin; !holds() && last - begin < std::chrono::microseconds(20);) {
    std::this_thread::yield();
    const auto now = Clock::now();
    if (now - last > std::chrono::microseconds(500))
      sleeps_until.store((now + std::chrono::seconds(1)).time_since_epoch(),
                         std::memory_order_relaxed);
    last = now;
  }
}

/// What a worker takes off its queue.
struct Item {
  enum class Kind { work, wait, record };
  Kind kind = Kind::work;
  Channels::Work work;
  Event event;           ///< to wait for, or to mark
  Span* span = nullptr;  ///< of work that is timed
};

/// Marks of the moments at which a stream began and ended some work; read when the stream has come
/// so far.
struct Timed {
  Span* span;
  Mark start, end;
};

/// One worker, its queue and how far it got.
class Channel {
 public:
  /// @param ending  of all channels: one that waits for another is let go by the end of both
  template <typename Body>
  void start(const std::atomic<bool>& ending, Body body) {
    ending_ = &ending;
    worker_ = std::thread(std::move(body));
  }

  void join() {
    if (worker_.joinable()) worker_.join();
  }

  void push(Item item) {
    bool asleep = false;
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(item));
      ++enqueued_;
      asleep = idle_;
    }
    if (asleep) arrived_.notify_one();
  }

  /// Takes the next item; false when the object is being destroyed.
  bool pop(Item& item) {
    look_briefly([this] { return *ending_ || enqueued_ > done_; });
    std::unique_lock lock(mutex_);
    idle_ = true;
    arrived_.wait(lock, [this] { return *ending_ || !queue_.empty(); });
    idle_ = false;
    if (*ending_) return false;
    item = std::move(queue_.front());
    queue_.pop_front();
    return true;
  }

  void complete_one() {
    bool awaited = false;
    {
      const std::lock_guard lock(mutex_);
      awaited = ++done_ >= awaited_;
      if (awaited) awaited_ = nobody;
    }
    if (awaited) completed_.notify_all();
  }

  void await(std::int64_t sequence) {
    const auto reached = [this, sequence] { return *ending_ || done_ >= sequence; };
    look_briefly(reached);
    if (reached()) return;
    std::unique_lock lock(mutex_);
    while (!reached()) {
      awaited_ = std::min(awaited_, sequence);
      completed_.wait(lock);
    }
  }

  /// Wakes all who wait here, after the end was set.
  void wake() {
    {
      const std::lock_guard lock(mutex_);  // or one who has just looked would sleep
    }
    arrived_.notify_all();
    completed_.notify_all();
  }

  std::int64_t enqueued() const { return enqueued_; }

  std::unique_ptr<Stream> stream;  ///< null: the worker does the work itself

  /// The work that a stream was given since the last read_times.
  void add_timed(Timed work) {
    const std::lock_guard lock(mutex_);
    timed_.push_back(std::move(work));
  }

  /// Fills in the spans of what the stream did; it must be done.
  void read_times(const Mark& started) {
    const std::lock_guard lock(mutex_);
    for (const Timed& work : timed_)
      if (started)
        *work.span = {stream->seconds(started, work.start), stream->seconds(started, work.end)};
    timed_.clear();
  }

  const Span* in_flight() {
    const std::lock_guard lock(mutex_);
    for (const Timed& work : timed_)
      if (!stream->reached(work.end)) return work.span;
    return working;
  }

  std::atomic<const Span*> working = nullptr;  ///< of the timed work in the worker's hands

 private:
  static constexpr std::int64_t nobody = std::numeric_limits<std::int64_t>::max();

  // Changed under the mutex only; atomic so that a brief look needs no lock.
  std::atomic<std::int64_t> enqueued_ = 0;
  std::atomic<std::int64_t> done_ = 0;
  const std::atomic<bool>* ending_ = nullptr;

  std::mutex mutex_;
  std::condition_variable arrived_;    // the queue has an item, or the end has come
  std::condition_variable completed_;  // `done_` has come to `awaited_`, or the end has come
  std::deque<Item> queue_;
  std::vector<Timed> timed_;
  // What the first sleeper waits for: told of each item, the thread that waits for the last one
  // took a core from those that compute 750 times a second.
  std::int64_t awaited_ = nobody;
  bool idle_ = false;  // the worker sleeps; an awake one looks at the queue by itself
  std::thread worker_;
};

}  // namespace brume::device
