/// @file Device code only: the calling thread's stream, checked calls.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace brume::device {

/// @throws Error(resource) that names what was tried, CUDA's own words and, where memory is
///                         missing, how much is left
void cuda_check(cudaError_t result, const char* what);

/// Text for a user whose device, or a library there, has no memory: the rest, and the remedy.
std::string cuda_memory_left();

int cuda_devices();  ///< 0 where there is no device or no driver

/// The stream that the calling thread's work goes to: of the channel whose worker it is.
/// @throws Error(bug) when it has none
cudaStream_t cuda_stream();
bool has_cuda_stream();

}  // namespace brume::device
