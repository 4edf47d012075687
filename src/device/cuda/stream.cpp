/// @file CUDA streams behind channels.
#include "device/stream.hpp"

#include <nvtx3/nvToolsExt.h>

#include <mutex>
#include <vector>

#include "base/error.hpp"
#include "device/cuda.hpp"
#include "device/device.hpp"

namespace brume::device {
namespace {

thread_local cudaStream_t bound_stream = nullptr;

/// Events of one kind. They are used again, because making one takes a lock of the driver's.
class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  explicit EventPool(unsigned flags) : flags_(flags) {}
  ~EventPool() {
    for (cudaEvent_t event : free_) cudaEventDestroy(event);
  }
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  /// An event as a mark; it comes back when nobody holds the mark.
  Mark take() {
    return {make(), [pool = shared_from_this()](cudaEvent_t event) { pool->give_back(event); }};
  }

 private:
  cudaEvent_t make() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        const cudaEvent_t event = free_.back();
        free_.pop_back();
        return event;
      }
    }
    cudaEvent_t event = nullptr;
    cuda_check(cudaEventCreateWithFlags(&event, flags_), "making an event");
    return event;
  }
  void give_back(cudaEvent_t event) {
    const std::lock_guard lock(mutex_);
    free_.push_back(event);
  }

  const unsigned flags_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

cudaEvent_t event_of(const Mark& mark) {
  return static_cast<cudaEvent_t>(const_cast<void*>(mark.get()));
}

/// A stream of one device; never waits for the legacy default stream.
class CudaStream final : public Stream {
 public:
  CudaStream() {
    cuda_check(cudaGetDevice(&device_), "asking for the device");
    cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
  }
  ~CudaStream() override {
    if (bound_stream == stream_) bound_stream = nullptr;
    cudaStreamDestroy(stream_);
  }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void bind() override {
    use_own_device();
    bound_stream = stream_;
  }
  Mark record() override { return record(*events_); }
  Mark record_time() override { return record(*timed_events_); }
  void wait(const Mark& mark) override {
    cuda_check(cudaStreamWaitEvent(stream_, event_of(mark), 0), "waiting for an event");
  }
  void synchronize() override { cuda_check(cudaStreamSynchronize(stream_), "work in a stream"); }
  void synchronize(const Mark& mark) override {
    use_own_device();
    cuda_check(cudaEventSynchronize(event_of(mark)), "work before an event");
  }
  bool reached(const Mark& mark) const override {
    cudaSetDevice(device_);
    return cudaEventQuery(event_of(mark)) != cudaErrorNotReady;
  }
  double seconds(const Mark& from, const Mark& to) const override {
    float time_ms = 0.0f;
    cuda_check(cudaEventElapsedTime(&time_ms, event_of(from), event_of(to)), "timing events");
    return time_ms * 1e-3;
  }

 private:
  /// Chooses the stream's device for the calling thread. A thread that has none would else start
  /// the first device, and take memory of it.
  void use_own_device() const { cuda_check(cudaSetDevice(device_), "choosing a device"); }

  Mark record(EventPool& pool) {
    Mark mark = pool.take();
    cuda_check(cudaEventRecord(event_of(mark), stream_), "recording an event");
    return mark;
  }

  // An event without timing costs the device least. Marks may outlive the stream.
  std::shared_ptr<EventPool> events_ = std::make_shared<EventPool>(cudaEventDisableTiming);
  std::shared_ptr<EventPool> timed_events_ = std::make_shared<EventPool>(cudaEventDefault);
  int device_ = 0;
  cudaStream_t stream_ = nullptr;
};

/// The NVTX domain that takes names; null without a profiler.
nvtxDomainHandle_t profilers() {
  static const nvtxDomainHandle_t domain = nvtxDomainCreateA("brume");
  return domain;
}

}  // namespace

bool has_cuda_stream() { return bound_stream != nullptr; }

std::unique_ptr<Stream> make_stream() { return std::make_unique<CudaStream>(); }

cudaStream_t cuda_stream() {
  require(bound_stream != nullptr, Failure::bug, "this thread has no stream");
  return bound_stream;
}

bool is_profiled() { return profilers() != nullptr; }
void Range::begin(const std::string& name) {
  nvtxEventAttributes_t event{};
  event.version = NVTX_VERSION;
  event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  event.messageType = NVTX_MESSAGE_TYPE_ASCII;
  event.message.ascii = name.c_str();
  nvtxDomainRangePushEx(profilers(), &event);
}
void Range::end() { nvtxDomainRangePop(profilers()); }

}  // namespace brume::device
