/// @file What the runtime, cuBLASLt and NCCL share: streams by their handles, ranges of memory.
#pragma once

#include <cuda_runtime_api.h>

#include "stream.hpp"

namespace brume::emulation {

Stream& stream_of(cudaStream_t handle);  ///< without the lock

/// Puts work into a stream; waits for it where CUDA_LAUNCH_BLOCKING asks so.
void put(Locked& locked, Stream& stream, std::string_view name, Stream::Work work);

/// `rows` stretches of `row_bytes` bytes that begin `stride_bytes` apart.
struct Range {
  std::byte* host;  ///< of the first byte
  bool known;       ///< it lies in a block; else it is the host's own
  std::vector<Interval> intervals;
};
inline constexpr int multiprocessors = 64;  ///< of a device

/// 90, a Hopper's, or what BRUME_EMULATED_CAPABILITY says.
int emulated_capability();

/// Needs the lock.
Range range(const void* address, std::uint64_t row_bytes, std::uint64_t rows,
            std::uint64_t stride_bytes, Access access, std::string_view what);
inline Range range(const void* address, std::uint64_t bytes, Access access, std::string_view what) {
  return range(address, bytes, 1, bytes, access, what);
}

/// The intervals of several ranges.
template <class... Ranges>
std::vector<Interval> intervals(const Ranges&... ranges) {
  std::vector<Interval> all;
  (all.insert(all.end(), ranges.intervals.begin(), ranges.intervals.end()), ...);
  return all;
}

}  // namespace brume::emulation
