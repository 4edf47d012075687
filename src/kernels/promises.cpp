#include "kernels/promises.hpp"

#include "base/error.hpp"

namespace brume::kernels {

void promise(bool holds, const char* kernel, const char* what) {
  require(holds, Failure::bug, "{}: {}", kernel, what);
}

}  // namespace brume::kernels
