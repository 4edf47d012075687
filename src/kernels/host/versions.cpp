#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.h>

#include "kernels/kokkos.hpp"
#include "kernels/types.hpp"

namespace brume::kernels {

std::string versions() {
  const dnnl_version_t& dnnl = *dnnl_version();
  return fmt::format("oneDNN {}.{}.{}, {}", dnnl.major, dnnl.minor, dnnl.patch, kokkos_version());
}

}  // namespace brume::kernels
