#include "kernels/types.hpp"

#include <omp.h>

#include <atomic>

#include "base/error.hpp"
#include "kernels/kokkos.hpp"
#include "kernels/narrow.hpp"

namespace brume::kernels {
namespace {

std::atomic<bool> products_may_round = false;

}  // namespace

Runtime::Runtime(int threads) {
  use_threads(threads);
  start_kokkos();
}

// Teams of more threads in all than there are cores sleep between kernels, even if only one works:
// with the profiler's still there, small kernels of a training on 2 cores took 1.4 times as long.
Runtime::~Runtime() { omp_pause_resource_all(omp_pause_soft); }

void allow_tf32(bool allowed) { products_may_round = allowed; }
bool tf32_allowed() { return products_may_round; }

void use_threads(int threads) {
  require(threads >= 1, Failure::bug, "kernels need at least 1 thread, found {}", threads);
  omp_set_num_threads(threads);
}

}  // namespace brume::kernels
