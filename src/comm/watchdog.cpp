#include "comm/watchdog.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.hpp"

namespace brume::comm {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

struct Watchdog::Impl {
  std::function<void(double)> on_silence;
  std::atomic<Clock::time_point> last_beat = Clock::now();
  std::mutex mutex;
  std::condition_variable changed;  // the deadline, or the end has come
  Seconds deadline;
  bool ending = false;
  std::thread thread;

  Impl(double deadline_s, std::function<void(double)> told)
      : on_silence(std::move(told)), deadline(deadline_s) {}

  void set(double deadline_s) {
    require(deadline_s > 0, Failure::bug, "a watchdog's deadline of {} s", deadline_s);
    const std::lock_guard lock(mutex);
    deadline = Seconds(deadline_s);
    changed.notify_all();
  }

  void watch() {
    pthread_setname_np(pthread_self(), "watchdog");
    Seconds silence{};
    if (sleep_until_silence(silence)) on_silence(silence.count());
  }

  /// False when the watchdog ends first.
  bool sleep_until_silence(Seconds& silence) {
    std::unique_lock lock(mutex);
    while (!ending) {
      silence = Clock::now() - last_beat.load();
      if (silence >= deadline) return true;
      changed.wait_for(lock, std::min(deadline - silence, Seconds(3600)));  // a clock has an end
    }
    return false;
  }
};

Watchdog::Watchdog(double deadline_s, std::function<void(double silence_s)> on_silence)
    : impl_(std::make_unique<Impl>(deadline_s, std::move(on_silence))) {
  impl_->set(deadline_s);
  impl_->thread = std::thread([impl = impl_.get()] { impl->watch(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->ending = true;
  }
  impl_->changed.notify_all();
  impl_->thread.join();
}

void Watchdog::beat() { impl_->last_beat = Clock::now(); }

void Watchdog::set_deadline(double deadline_s) { impl_->set(deadline_s); }

}  // namespace brume::comm
