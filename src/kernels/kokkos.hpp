/// @file What the kernels of hosts use of Kokkos, without its headers: where it works on devices,
/// only their compiler reads them.
#pragma once

#include <string>

namespace brume::kernels {

/// Starts Kokkos unless it runs, on the calling thread's device; it ends with the process.
void start_kokkos();

/// "Kokkos 3.4.0 Serial".
std::string kokkos_version();

/// Calls `begin` with the name of each Region that begins, and `end` when it ends, on its thread;
/// null: no more.
void observe_regions(void (*begin)(const char*), void (*end)());

/// Names a stretch of the calling thread's time in Kokkos' profiling tools.
class Region {
 public:
  explicit Region(const char* name);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

 private:
  bool named_;
};

}  // namespace brume::kernels
