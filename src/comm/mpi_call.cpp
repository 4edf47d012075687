#include "comm/mpi_call.hpp"

#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <limits>
#include <string_view>
#include <thread>

#include "base/error.hpp"
#include "comm/computing.hpp"

namespace brume::comm {

namespace {

std::atomic<int> computing = 0;
std::atomic<int> running_waits = 0;
std::atomic<std::uint64_t> waits_over = 0;
std::atomic<std::uint64_t> looks_taken = 0;

/// Counts a wait.
class Waiting {
 public:
  Waiting() { ++running_waits; }
  ~Waiting() {
    ++waits_over;
    --running_waits;
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
};

/// Lets this thread sleep for microseconds: Linux adds 50 us of slack to every sleep unless told
/// not to (measured: 86 us for a sleep of 1 us with it, 21 us without).
void sleep_precisely() {
  static thread_local const int told = prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  static_cast<void>(told);
}

/// Calls `test` until it says done: for 300 us all the time, as a core that rests wakes slowly on a
/// virtual machine (with sleeps from the start tensor-parallel steps took 5-20 % longer, others as
/// long), then with sleeps in between. Giving the core away between calls instead starves this
/// thread beside computation: others then run for milliseconds, and all-reduces stand still.
///
/// A message beside computation is looked for between sleeps from the start: nothing waits for it
/// yet, and each look takes some 10 us from the core that computes. Waiting for messages took 5 to
/// 10 % of a pipeline's processor time before.
template <typename Test>
void poll(const Test& test, bool message = false) {
  using std::chrono::nanoseconds, std::chrono::microseconds;
  sleep_precisely();
  const Waiting counted;
  const auto begin = std::chrono::steady_clock::now();
  for (int done = 0; ++looks_taken, test(&done), !done;) {
    const nanoseconds waited = std::chrono::steady_clock::now() - begin;
    const bool beside_computation = message && computing > 0;
    if (!beside_computation && waited < microseconds(300)) continue;
    // A sleep grows with the time waited, so no wait is much longer than what it waits for.
    std::this_thread::sleep_for(
        beside_computation
            ? std::clamp<nanoseconds>(waited / 4, microseconds(50), microseconds(500))
            : std::clamp<nanoseconds>(waited / 32, microseconds(1), microseconds(200)));
  }
}

}  // namespace

Computing::Computing() { ++computing; }
Computing::~Computing() { --computing; }

void check_mpi(int code, std::source_location where) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  std::string_view file = where.file_name();
  file.remove_prefix(file.rfind('/') + 1);
  throw Error(Failure::network, "an MPI call failed ({}:{}): {}", file, where.line(), text.data());
}

int mpi_count(std::size_t count) {
  constexpr auto most = static_cast<std::size_t>(std::numeric_limits<int>::max());
  require(count <= most, Failure::bug, "a message of {} values, MPI takes at most {} at once",
          count, most);
  return static_cast<int>(count);
}

Waits waits() { return {running_waits, waits_over, looks_taken}; }

MPI_Status wait(MPI_Request request, std::source_location where) {
  MPI_Status status{};
  poll([&](int* done) { check_mpi(MPI_Test(&request, done, &status), where); });
  return status;
}

MPI_Status wait_for_message(MPI_Request request, std::source_location where) {
  MPI_Status status{};
  poll([&](int* done) { check_mpi(MPI_Test(&request, done, &status), where); }, true);
  return status;
}

void wait(std::span<MPI_Request> requests, std::source_location where) {
  const int count = mpi_count(requests.size());
  poll([&](int* done) {
    check_mpi(MPI_Testall(count, requests.data(), done, MPI_STATUSES_IGNORE), where);
  });
}

}  // namespace brume::comm
