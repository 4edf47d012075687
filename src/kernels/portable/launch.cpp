#include "kernels/portable/launch.hpp"

#ifdef KOKKOS_ENABLE_CUDA
#include <optional>

#include "device/cuda.hpp"
#endif

namespace brume::kernels {

const Space& queue() {
#ifdef KOKKOS_ENABLE_CUDA
  // Kokkos takes memory for each: so a thread keeps the one of its stream.
  thread_local cudaStream_t stream = nullptr;
  thread_local std::optional<Space> space;
  if (!space || stream != device::cuda_stream()) {
    stream = device::cuda_stream();
    space.emplace(stream);
  }
  return *space;
#else
  thread_local const Space space;
  return space;
#endif
}

void store_sum(const char* name, const double* terms, std::int64_t count, double scale, Write write,
               double* sum) {
  const bool adds = write == Write::accumulate;
  for_each_row(
      name, 1, KOKKOS_LAMBDA(const Team& team) {
        const double own =
            scale * sum_along<double>(team, int(count), [&](int i) { return terms[i]; });
        Kokkos::single(Kokkos::PerTeam(team), [&]() { *sum = adds ? *sum + own : own; });
      });
}

}  // namespace brume::kernels
