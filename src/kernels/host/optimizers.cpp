#include "kernels/update_rules.hpp"

namespace brume::kernels {

UpdateKernel update_kernel(std::string_view optimizer) { return host_update_kernel(optimizer); }

}  // namespace brume::kernels
