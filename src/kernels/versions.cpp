#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.h>

#include "kernels/types.hpp"

namespace brume::kernels {

std::string versions() {
  const dnnl_version_t& dnnl = *dnnl_version();
  return fmt::format("oneDNN {}.{}.{}, Kokkos {}.{}.{} {}", dnnl.major, dnnl.minor, dnnl.patch,
                     KOKKOS_VERSION / 10000, KOKKOS_VERSION / 100 % 100, KOKKOS_VERSION % 100,
                     Kokkos::DefaultExecutionSpace::name());
}

}  // namespace brume::kernels
