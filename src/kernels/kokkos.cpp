#include "kernels/kokkos.hpp"

#include <cstdlib>
#include <mutex>

#include <Kokkos_Core.hpp>

#ifdef KOKKOS_ENABLE_CUDA
#include "device/cuda.hpp"
#endif

namespace brume::kernels {

void start_kokkos() {
  static std::once_flag started;
  std::call_once(started, [] {
    if (Kokkos::is_initialized()) return;  // whoever started it ends it
#ifdef KOKKOS_ENABLE_CUDA
    // The rank's device, which Kokkos would choose by a rule of its own.
    int device = 0;
    device::cuda_check(cudaGetDevice(&device), "asking for the device");
    Kokkos::initialize(Kokkos::InitializationSettings().set_device_id(device));
#else
    Kokkos::initialize();
#endif
    std::atexit([] { Kokkos::finalize(); });
  });
}

std::string kokkos_version() {
  const auto number = [](int part) { return std::to_string(part); };
  return "Kokkos " + number(KOKKOS_VERSION / 10000) + "." + number(KOKKOS_VERSION / 100 % 100) +
         "." + number(KOKKOS_VERSION % 100) + " " + Kokkos::DefaultExecutionSpace::name();
}

void observe_regions(void (*begin)(const char*), void (*end)()) {
  Kokkos::Tools::Experimental::set_push_region_callback(begin);
  Kokkos::Tools::Experimental::set_pop_region_callback(end);
}

Region::Region(const char* name) : named_(Kokkos::Profiling::profileLibraryLoaded()) {
  if (named_) Kokkos::Profiling::pushRegion(name);
}

Region::~Region() {
  if (named_) Kokkos::Profiling::popRegion();
}

}  // namespace brume::kernels
