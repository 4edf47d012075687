/// @file What a node has left.
#pragma once

#include <cstdint>

namespace brume::device {

/// Refuses what the node has not got: the kernel would grant it and kill the job at first touch.
/// @throws Error(resource)
void require_host_memory(std::int64_t bytes);

}  // namespace brume::device
