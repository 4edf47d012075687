#include "signals.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <string_view>

#include "base/error.hpp"
#include "base/log.hpp"
#include "io/run_lock.hpp"

namespace brume::app {
namespace {

constexpr std::array stop_signals{SIGUSR1, SIGTERM, SIGINT};
constexpr int save_signal = SIGUSR2;
constexpr std::int64_t same_request_ns = 2'000'000'000;

// A handler may touch nothing that has locks.
enum class Phase { leave, remember, ignore };
std::atomic<Phase> phase = Phase::leave;
std::atomic<std::int64_t> first_request_ns = 0;  ///< on the monotonic clock; 0: none
std::atomic<bool> save_requested = false;
static_assert(std::atomic<Phase>::is_always_lock_free &&
              std::atomic<std::int64_t>::is_always_lock_free &&
              std::atomic<bool>::is_always_lock_free);

std::int64_t now_ns() {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec;
}

[[noreturn]] void leave(Failure failure, std::string_view why) {
  io::RunLock::remove_held();  // a lock that stays would count as a kill
  // One rank speaks for all those that a request reaches. If it cannot, nobody can be told.
  [[maybe_unused]] const auto written =
      log::leads() ? ::write(STDERR_FILENO, why.data(), why.size()) : 0;
  ::_exit(int(failure));
}

void handle(int signal) {
  // SIGTERM is also what launchers end a failed job's ranks by, after one of them has said why.
  constexpr std::string_view in_time =
      "brume: stopped by a signal before the first step: nothing is lost, start the job again\n";
  if (phase == Phase::ignore) return;
  if (phase == Phase::leave)
    leave(Failure::stopped, signal == SIGTERM ? std::string_view() : in_time);
  const std::int64_t now = now_ns();
  std::int64_t first = 0;
  if (first_request_ns.compare_exchange_strong(first, now) || now - first < same_request_ns) return;
  leave(Failure::interrupted,
        "brume: stopped at once by a second signal: steps since the last checkpoint are lost\n");
}

void note_save(int) {
  if (phase == Phase::remember) save_requested = true;
}

/// Without the C library's function, which sanitizers replace by one that needs them to have begun.
void change_mask(int how) {
  std::uint64_t mask = std::uint64_t{1} << (save_signal - 1);  // as Linux has it
  for (int signal : stop_signals) mask |= std::uint64_t{1} << (signal - 1);
  ::syscall(SYS_rt_sigprocmask, how, &mask, nullptr, sizeof mask);
}

}  // namespace

void hold_signals() { change_mask(SIG_BLOCK); }

void release_signals() { change_mask(SIG_UNBLOCK); }

Signals::Signals() {
  phase = Phase::leave;
  first_request_ns = 0;
  save_requested = false;
  for (int signal : stop_signals) std::signal(signal, handle);
  std::signal(save_signal, note_save);
  std::signal(SIGPIPE, SIG_IGN);  // a reader of the log that ends is no reason to stop
  release_signals();
}

Signals::~Signals() {
  for (int signal : stop_signals) std::signal(signal, SIG_IGN);
  std::signal(save_signal, SIG_IGN);
}

void Signals::remember() { phase = Phase::remember; }

void Signals::ignore() { phase = Phase::ignore; }

bool Signals::pending() const { return first_request_ns != 0; }

bool Signals::take_save() { return save_requested.exchange(false); }

}  // namespace brume::app
