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
#include "comm/silence.hpp"

namespace brume::comm {

using Seconds = std::chrono::duration<double>;

constexpr double look_s = 0.5;

struct Watchdog::Impl {
  std::function<void(double)> on_silence;
  std::atomic<bool> beaten = false;  // since the last look
  std::mutex mutex;
  std::condition_variable changed;  // the deadline, or the end has come
  Silence silence{look_s};
  double deadline_s;
  Silence since_set{look_s};  // not beaten: how long ago the deadline was set
  double busy_s = 0.0;        // from then to the last beat
  bool ending = false;
  std::thread thread;

  Impl(double deadline_s, std::function<void(double)> told)
      : on_silence(std::move(told)), deadline_s(deadline_s) {}

  void set(double s) {
    require(s > 0, Failure::bug, "a watchdog's deadline of {} s", s);
    const std::lock_guard lock(mutex);
    deadline_s = s;
    since_set.look(true);
    busy_s = 0.0;
    changed.notify_all();
  }

  void watch() {
    pthread_setname_np(pthread_self(), "watchdog");
    double silence_s = 0.0;
    if (look_until_silence(silence_s)) on_silence(silence_s);
  }

  /// False when the watchdog ends first.
  bool look_until_silence(double& silence_s) {
    std::unique_lock lock(mutex);
    while (!ending) {
      silence_s = silence.look(beaten.exchange(false));
      const double set_ago_s = since_set.look(false);
      if (silence_s == 0.0) busy_s = set_ago_s;
      const double limit_s = std::max(deadline_s, busy_s);
      if (silence_s >= limit_s) return true;
      changed.wait_for(lock, Seconds(std::min(limit_s - silence_s, look_s)));
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

void Watchdog::beat() { impl_->beaten.store(true, std::memory_order_relaxed); }

void Watchdog::set_deadline(double deadline_s) { impl_->set(deadline_s); }

}  // namespace brume::comm
