/// @file What every test on a GPU begins with.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "device/cuda.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"

/// Leaves the program with 77, which ctest counts as skipped, where there is no device.
#define BRUME_NEEDS_GPU() \
  if (brume::device::cuda_devices() == 0) std::exit(77)

namespace brume::test {

/// A stream for the test's own thread, as a channel's worker has one.
class BoundStream {
 public:
  BoundStream() : stream_(device::make_stream()) { stream_->bind(); }

 private:
  std::unique_ptr<device::Stream> stream_;
};

/// Values in device memory.
class OnDevice {
 public:
  explicit OnDevice(const std::vector<float>& values)
      : memory_(std::int64_t(values.size() * sizeof(float))) {
    device::copy_now(memory_.data(), values.data(), memory_.bytes());
  }
  float* data() const { return reinterpret_cast<float*>(memory_.data()); }
  std::size_t size() const { return std::size_t(memory_.bytes()) / sizeof(float); }
  /// After the calling thread's stream is done.
  std::vector<float> values() const {
    std::vector<float> values(size());
    device::finish();
    device::copy_now(values.data(), memory_.data(), memory_.bytes());
    return values;
  }

 private:
  device::Memory memory_;
};

}  // namespace brume::test
