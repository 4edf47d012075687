/// @file NVIDIA devices: streams behind channels, device and pinned memory, copies.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "device/stream.hpp"

namespace brume::device {

/// @throws Error(resource) naming what was tried, and CUDA's own words
void cuda_check(cudaError_t result, const char* what);

struct CudaDevice {
  std::string name;  ///< "NVIDIA H200"
  std::int64_t memory_bytes = 0;
  int compute_capability = 0;  ///< 90 for 9.0
};

int cuda_devices();  ///< 0 where there is no device or no driver
CudaDevice cuda_device(int index);

/// The device of a rank: devices are dealt out by the rank's number on its node.
///
/// @return its index; two ranks share one only when there are more ranks than devices
int cuda_device_of(int local_rank, int num_devices);

/// A stream of one device; never waits for the legacy default stream.
class CudaStream final : public Stream {
 public:
  explicit CudaStream(int device);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void bind() override;
  Mark record() override;
  void wait(const Mark& mark) override;
  void synchronize() override;
  void synchronize(const Mark& mark) override;

  cudaStream_t native() const { return stream_; }

 private:
  int device_;
  cudaStream_t stream_ = nullptr;
};

/// The calling thread's stream, set by CudaStream::bind. @throws Error(bug) when there is none
cudaStream_t cuda_stream();

/// A block of one device's memory.
class CudaMemory {
 public:
  CudaMemory() = default;
  /// @throws Error(resource) naming the bytes, and how many the device had free
  CudaMemory(int device, std::int64_t bytes);

  std::byte* data() const { return data_.get(); }
  std::int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* block) const;
  };
  std::unique_ptr<std::byte[], Free> data_;
  std::int64_t bytes_ = 0;
};

/// A block of host memory that devices copy from and to without a detour.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  explicit PinnedMemory(std::int64_t bytes);  ///< @throws Error(resource) naming the bytes

  std::byte* data() const { return data_.get(); }
  std::int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* block) const;
  };
  std::unique_ptr<std::byte[], Free> data_;
  std::int64_t bytes_ = 0;
};

/// Puts a copy into a stream; each side may be device or pinned memory.
void cuda_copy(std::byte* destination, const std::byte* source, std::int64_t bytes,
               cudaStream_t stream);

/// Names a stretch of the calling thread's time in NVIDIA's profilers.
class CudaRange {
 public:
  explicit CudaRange(const std::string& label);
  ~CudaRange();
  CudaRange(const CudaRange&) = delete;
  CudaRange& operator=(const CudaRange&) = delete;
};

}  // namespace brume::device
