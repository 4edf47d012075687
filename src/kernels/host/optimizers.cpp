#include "kernels/update_rules.hpp"

namespace brume::kernels {

UpdateKernel update_kernel(std::string_view optimizer, Moments moments) {
  return host_update_kernel(optimizer, moments);
}

}  // namespace brume::kernels
