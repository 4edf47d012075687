#include <nvtx3/nvToolsExt.h>

#include "base/error.hpp"
#include "device/cuda.hpp"

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

}  // namespace

CudaStream::CudaStream(int device) : device_(device) {
  cuda_check(cudaSetDevice(device_), "choosing a device");
  cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
}

CudaStream::~CudaStream() { cudaStreamDestroy(stream_); }

void CudaStream::bind() {
  cuda_check(cudaSetDevice(device_), "choosing a device");
  bound_stream = stream_;
}

Mark CudaStream::record() {
  auto mark = std::make_shared<CudaEvent>();
  cuda_check(cudaEventRecord(mark->event, stream_), "recording an event");
  return mark;
}

void CudaStream::wait(const Mark& mark) {
  cuda_check(cudaStreamWaitEvent(stream_, event_of(mark), 0), "waiting for an event");
}

void CudaStream::synchronize() { cuda_check(cudaStreamSynchronize(stream_), "work in a stream"); }

void CudaStream::synchronize(const Mark& mark) {
  cuda_check(cudaEventSynchronize(event_of(mark)), "work before an event");
}

cudaStream_t cuda_stream() {
  require(bound_stream != nullptr, Failure::bug, "this thread has no stream");
  return bound_stream;
}

CudaRange::CudaRange(const std::string& label) { nvtxRangePushA(label.c_str()); }
CudaRange::~CudaRange() { nvtxRangePop(); }

}  // namespace brume::device
