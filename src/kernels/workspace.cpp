#include "kernels/workspace.hpp"

#include "base/error.hpp"
#include "base/text.hpp"
#include "device/memory.hpp"

namespace brume::kernels {

void* workspace(std::int64_t bytes) {
  require(bytes <= workspace_bytes, Failure::resource,
          "a kernel needs a workspace of {}, it has {}", format_bytes(double(bytes)),
          format_bytes(double(workspace_bytes)));
  thread_local const device::Memory memory(workspace_bytes);
  return memory.data();
}

}  // namespace brume::kernels
