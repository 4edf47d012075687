/// @file Memory for what a kernel needs only while it runs.
#pragma once

#include <cstdint>

#include "base/device_limits.hpp"

namespace brume::kernels {

using device_limits::workspace_bytes;

/// The calling thread's workspace, taken from its device at the first call and kept: one for all
/// kernels, because a channel's kernels run one after another.
///
/// @throws Error(resource) when it has no room for so many bytes
void* workspace(std::int64_t bytes);

template <class Element>
Element* workspace_of(std::int64_t count) {
  return static_cast<Element*>(workspace(count * std::int64_t(sizeof(Element))));
}

}  // namespace brume::kernels
