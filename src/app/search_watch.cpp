#include "search_watch.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <string>

#include "base/log.hpp"
#include "base/terminal.hpp"
#include "base/text.hpp"

namespace brume::app {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds on_terminal_every{250};
constexpr std::chrono::seconds in_log_every{30};

std::atomic<bool> interrupted = false;
static_assert(
    std::atomic<bool>::is_always_lock_free);  // a handler may touch nothing that has locks

void interrupt(int) { interrupted = true; }

}  // namespace

SearchWatch::SearchWatch(double limit_s, Interrupt interrupt_means)
    : limit_s_(limit_s), interrupt_(interrupt_means), terminal_(terminal::watched(STDERR_FILENO)) {
  if (interrupt_ == Interrupt::ends_search) {
    interrupted = false;
    struct sigaction action = {};
    action.sa_handler = interrupt;
    action.sa_flags = int(SA_RESETHAND);  // the second one ends the process
    for (const int signal : {SIGINT, SIGTERM}) ::sigaction(signal, &action, nullptr);
  }
  watcher_ = std::thread([this] { watch(); });
}

SearchWatch::~SearchWatch() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_one();
  watcher_.join();
  if (interrupt_ != Interrupt::ends_search) return;
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
}

tuner::Options SearchWatch::options() {
  return {.progress = &progress_,
          .stop = interrupt_ == Interrupt::ends_search ? &interrupted : nullptr};
}

void SearchWatch::watch() {
  const Clock::time_point begin = Clock::now();
  std::unique_lock lock(mutex_);
  const Clock::duration every = terminal_ ? Clock::duration(on_terminal_every) : in_log_every;
  while (!changed_.wait_for(lock, every, [this] { return over_; }))
    show(std::chrono::duration<double>(Clock::now() - begin).count());
  if (shown_ && terminal_) fmt::print(stderr, "\r\033[K");
}

void SearchWatch::show(double seconds) {
  const double best_s = progress_.best_s, bound_s = progress_.bound_s;
  std::string line = fmt::format("search  {:.0f} s", seconds);
  line += std::isinf(best_s) ? ": no plan yet" : ": best " + format_seconds(best_s);
  // The bound is one of 1F1B: a plan in another order may be faster.
  const bool bounded = bound_s > 0.0 && bound_s <= best_s && !std::isinf(bound_s);
  if (bounded) line += ", bound " + format_seconds(bound_s);
  if (bounded && !std::isinf(best_s))
    line += ", gap " + format_percent((best_s - bound_s) / best_s);
  line += interrupted ? ", stopping"
                      : fmt::format(", {:.0f} s left", std::max(0.0, limit_s_ - seconds));
  shown_ = true;
  if (!terminal_) return log::info("{}", line);
  fmt::print(stderr, "\r\033[K{}", line);
  std::fflush(stderr);
}

}  // namespace brume::app
