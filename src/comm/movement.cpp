#include "movement.hpp"

#include <sys/resource.h>

#include <ctime>

#include "comm/mpi_call.hpp"

namespace brume::comm {
namespace {

/// What threads that only look from time to time do not use in a minute [s].
constexpr double least_cpu_s = 0.02;

double seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

double cpu_of_others_s() {
  return seconds(CLOCK_PROCESS_CPUTIME_ID) - seconds(CLOCK_THREAD_CPUTIME_ID);
}

std::int64_t blocks_read() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_inblock} + usage.ru_majflt;
}

}  // namespace

Movement::Movement() : cpu_s_(cpu_of_others_s()), blocks_(blocks_read()), waits_(waits().over) {}

Movement::Seen Movement::look() {
  const Waits now = waits();
  const double cpu_s = cpu_of_others_s();
  const std::int64_t blocks = blocks_read();
  const bool waits = now.running > 0;
  const bool moved =
      now.over != waits_ || (!waits && (cpu_s >= cpu_s_ + least_cpu_s || blocks != blocks_));
  if (moved || waits) {
    cpu_s_ = cpu_s;
    blocks_ = blocks;
    waits_ = now.over;
  }
  return {moved, waits};
}

}  // namespace brume::comm
