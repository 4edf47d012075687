/// @file What every test on a GPU begins with.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "device/cuda.hpp"

/// Leaves the program with 77, which ctest counts as skipped, where there is no device.
#define BRUME_NEEDS_GPU() \
  if (brume::device::cuda_devices() == 0) std::exit(77)

namespace brume::test {

/// Values in device memory, brought there and back through a stream.
class OnDevice {
 public:
  OnDevice(const std::vector<float>& values, cudaStream_t stream)
      : stream_(stream), memory_(0, std::int64_t(values.size() * sizeof(float))) {
    device::cuda_copy(memory_.data(), reinterpret_cast<const std::byte*>(values.data()),
                      memory_.bytes(), stream_);
    device::cuda_check(cudaStreamSynchronize(stream_), "copying");
  }
  float* data() const { return reinterpret_cast<float*>(memory_.data()); }
  std::size_t size() const { return std::size_t(memory_.bytes()) / sizeof(float); }
  std::vector<float> values() const {
    std::vector<float> values(size());
    device::cuda_copy(reinterpret_cast<std::byte*>(values.data()), memory_.data(), memory_.bytes(),
                      stream_);
    device::cuda_check(cudaStreamSynchronize(stream_), "copying");
    return values;
  }

 private:
  cudaStream_t stream_;
  device::CudaMemory memory_;
};

}  // namespace brume::test
