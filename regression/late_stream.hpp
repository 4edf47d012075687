/// @file A stream that works on a thread of its own, late: what an accelerator does, on the host.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "device/stream.hpp"

namespace brume::test {

class LateStream : public device::Stream {
 public:
  explicit LateStream(std::chrono::microseconds late = std::chrono::microseconds(50))
      : late_(late) {}
  ~LateStream() override {
    push(nullptr);
    thread_.join();
  }

  void bind() override { current = this; }
  device::Mark record() override {
    auto reached = std::make_shared<std::promise<Moment>>();
    auto mark = std::make_shared<std::shared_future<Moment>>(reached->get_future());
    put([reached] { reached->set_value(std::chrono::steady_clock::now()); });
    return mark;
  }
  device::Mark record_time() override { return record(); }
  void wait(const device::Mark& mark) override {
    put([mark] { moment_of(mark).wait(); });
  }
  void synchronize() override { synchronize(record()); }
  void synchronize(const device::Mark& mark) override { moment_of(mark).wait(); }
  bool reached(const device::Mark& mark) const override {
    return moment_of(mark).wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  double seconds(const device::Mark& from, const device::Mark& to) const override {
    return std::chrono::duration<double>(moment_of(to).get() - moment_of(from).get()).count();
  }

  /// Works on it later, in order.
  void put(std::function<void()> work) {
    if (at_once_) return work();
    push(std::move(work));
  }

  static inline thread_local LateStream* current = nullptr;

 protected:
  bool at_once_ = false;  ///< nothing is late

 private:
  using Moment = std::chrono::steady_clock::time_point;

  static const std::shared_future<Moment>& moment_of(const device::Mark& mark) {
    return *static_cast<const std::shared_future<Moment>*>(mark.get());
  }

  void push(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(work));
    }
    arrived_.notify_one();
  }

  void serve() {
    for (;;) {
      std::unique_lock lock(mutex_);
      arrived_.wait(lock, [this] { return !queue_.empty(); });
      const std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      if (!work) return;
      std::this_thread::sleep_for(late_);
      work();
    }
  }

  const std::chrono::microseconds late_;  ///< each item begins so much after the one before
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::function<void()>> queue_;
  std::thread thread_{[this] { serve(); }};  // last: it uses the rest
};

}  // namespace brume::test
