/// @file CUDA streams behind channels.
#include "device/stream.hpp"

#include <nvtx3/nvToolsExt.h>

#include "base/error.hpp"
#include "device/cuda.hpp"
#include "device/device.hpp"

namespace brume::device {
namespace {

thread_local cudaStream_t bound_stream = nullptr;

/// An event without timing: it costs the device least.
struct CudaEvent {
  CudaEvent() {
    cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
  }
  ~CudaEvent() { cudaEventDestroy(event); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  cudaEvent_t event = nullptr;
};

cudaEvent_t event_of(const Mark& mark) { return static_cast<const CudaEvent*>(mark.get())->event; }

/// A stream of one device; never waits for the legacy default stream.
class CudaStream final : public Stream {
 public:
  CudaStream() {
    cuda_check(cudaGetDevice(&device_), "asking for the device");
    cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
  }
  ~CudaStream() override { cudaStreamDestroy(stream_); }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void bind() override {
    cuda_check(cudaSetDevice(device_), "choosing a device");
    bound_stream = stream_;
  }
  Mark record() override {
    auto mark = std::make_shared<CudaEvent>();
    cuda_check(cudaEventRecord(mark->event, stream_), "recording an event");
    return mark;
  }
  void wait(const Mark& mark) override {
    cuda_check(cudaStreamWaitEvent(stream_, event_of(mark), 0), "waiting for an event");
  }
  void synchronize() override { cuda_check(cudaStreamSynchronize(stream_), "work in a stream"); }
  void synchronize(const Mark& mark) override {
    cuda_check(cudaEventSynchronize(event_of(mark)), "work before an event");
  }

 private:
  int device_ = 0;
  cudaStream_t stream_ = nullptr;
};

}  // namespace

std::unique_ptr<Stream> make_stream() { return std::make_unique<CudaStream>(); }

cudaStream_t cuda_stream() {
  require(bound_stream != nullptr, Failure::bug, "this thread has no stream");
  return bound_stream;
}

CudaRange::CudaRange(const std::string& label) { nvtxRangePushA(label.c_str()); }
CudaRange::~CudaRange() { nvtxRangePop(); }

}  // namespace brume::device
