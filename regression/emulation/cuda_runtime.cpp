/// @file The CUDA runtime, as far as Brume calls it. What is called otherwise than Brume does is an
/// error that names it.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unordered_map>

#include "handles.hpp"
#include "thread.hpp"

namespace brume::emulation {
namespace {

constexpr std::uint64_t device_bytes = std::uint64_t{8} << 30;

struct Event {
  bool timed;
  int device;
  std::shared_ptr<Moment> last;
};

thread_local int device = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t failed(cudaError_t error) { return last_error = error; }

int devices() {
  static const int count = [] {
    std::fprintf(
        stderr, "emulated CUDA: kernels run on this host, and each of their accesses is checked\n");
    const char* const asked = std::getenv("BRUME_EMULATED_DEVICES");
    return asked ? std::atoi(asked) : 4;
  }();
  return count;
}

}  // namespace

int emulated_capability() {
  const char* const asked = std::getenv("BRUME_EMULATED_CAPABILITY");
  return asked ? std::atoi(asked) : 90;
}

namespace {

Event& event_of(cudaEvent_t handle) { return *reinterpret_cast<Event*>(handle); }

/// The mangled names of kernels, by the functions that launch them.
std::unordered_map<const void*, std::string>& kernel_names() {
  static auto& all = *new std::unordered_map<const void*, std::string>;
  return all;
}

struct Configuration {
  dim3 grid, block;
  std::size_t shared_bytes;
  cudaStream_t stream;
};
thread_local Configuration configuration;

Dim dim_of(const dim3& d) { return {d.x, d.y, d.z}; }

}  // namespace

Stream& stream_of(cudaStream_t handle) {
  if (handle == cudaStreamPerThread) {
    // Threads keep one a device, as the runtime does.
    thread_local std::map<int, std::unique_ptr<Stream>> own;
    const OwnMemory memory;
    std::unique_ptr<Stream>& stream = own[device];
    if (!stream) stream = std::make_unique<Stream>(device, true);
    return *stream;
  }
  if (handle == nullptr || handle == cudaStreamLegacy)
    report("work in the legacy default stream, of which there should be none");
  return *reinterpret_cast<Stream*>(handle);
}

void put(Locked& locked, Stream& stream, std::string_view name, Stream::Work work) {
  static const bool blocks = [] {
    const char* const asked = std::getenv("CUDA_LAUNCH_BLOCKING");
    return asked && std::string_view(asked) == "1";
  }();
  if (stream.device() != device)
    report(fmt::format("{} in a stream of device {} by a thread of device {}", name,
                       stream.device(), device));
  stream.put(name, std::move(work));
  if (blocks) stream.finish(locked);
}

Range range(const void* address, std::uint64_t row_bytes, std::uint64_t rows,
            std::uint64_t stride_bytes, Access access, std::string_view what) {
  const auto first = reinterpret_cast<std::uint64_t>(address);
  Range made{static_cast<std::byte*>(const_cast<void*>(address)), false, {}};
  if (rows == 0 || row_bytes == 0) return made;
  Allocation* const block = find(first, (rows - 1) * stride_bytes + row_bytes, what);
  if (block == nullptr) return made;
  const std::uint64_t offset = first - block->base;
  made.host = block->host + offset;
  made.known = true;
  if (stride_bytes == row_bytes) row_bytes *= rows, rows = 1;
  for (std::uint64_t row = 0; row < rows; ++row)
    made.intervals.push_back(
        {block, offset + row * stride_bytes, offset + row * stride_bytes + row_bytes, access});
  return made;
}

}  // namespace brume::emulation

using namespace brume::emulation;

// ---- what nvcc's host code calls

extern "C" {

void** __cudaRegisterFatBinary(void*) { return nullptr; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  kernel_names()[function] = name;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared_bytes,
                                     cudaStream_t stream) {
  configuration = {grid, block, shared_bytes, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared_bytes,
                                       void* stream) {
  *grid = configuration.grid, *block = configuration.block,
  *shared_bytes = configuration.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = configuration.stream;
  return cudaSuccess;
}

// Since CUDA 13: a kernel's handle is its function.
char __cudaInitModule(void**) { return 0; }
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               std::size_t shared_bytes, cudaStream_t stream) {
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, arguments,
                          shared_bytes, stream);
}

}  // extern "C"

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                             std::size_t shared_bytes, cudaStream_t handle) {
  Stream& stream = stream_of(handle);
  Locked locked;
  const Kernel& kernel = kernel_of(kernel_names().at(function));
  if (shared_bytes != 0)
    report(kernel.name + " asks for shared memory at its launch, which is not emulated");
  const Kernel::Parameter last = kernel.parameters.back();
  std::vector<std::byte> parameters(last.offset + last.bytes);
  for (std::size_t i = 0; i < kernel.parameters.size(); ++i)
    std::memcpy(parameters.data() + kernel.parameters[i].offset, arguments[i],
                kernel.parameters[i].bytes);
  put(locked, stream, kernel.name, [&kernel, grid, block, parameters] {
    return Launch(kernel, dim_of(grid), dim_of(block), parameters).run();
  });
  return cudaSuccess;
}

// ---- devices

cudaError_t cudaGetDeviceCount(int* count) {
  *count = devices();
  return *count > 0 ? cudaSuccess : failed(cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int wanted) {
  if (wanted < 0 || wanted >= devices()) return failed(cudaErrorInvalidDevice);
  device = wanted;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* now) {
  *now = device;
  return devices() > 0 ? cudaSuccess : failed(cudaErrorNoDevice);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "emulated device");
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = emulated_capability() / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = emulated_capability() % 10; break;
    case cudaDevAttrMultiProcessorCount: *value = multiprocessors; break;
    default: report(fmt::format("attribute {} of a device is not emulated", int(attribute)));
  }
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int bytes, int of) {
  std::snprintf(id, std::size_t(bytes), "0000:%02x:00.0", unsigned(of));
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  const Locked locked;
  *total_bytes = device_bytes;
  *free_bytes = device_bytes - allocated_bytes(device);
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorNotReady ? "cudaErrorNotReady" : "an emulated error";
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorNoDevice: return "no device";
    case cudaErrorNotReady: return "not ready";
    default: return "an error that only an emulated device has";
  }
}

// ---- memory

namespace {
cudaError_t take(void** block, std::size_t bytes, Kind kind) {
  const Locked locked;
  if (bytes == 0) report("a block of 0 bytes was asked for");
  if (next_call_fails(kind == Kind::pinned ? "pinned" : "device"))
    return failed(cudaErrorMemoryAllocation);
  if (kind == Kind::device && bytes > device_bytes - allocated_bytes(device))
    return failed(cudaErrorMemoryAllocation);
  const Allocation* const made = allocate(bytes, kind, device);
  if (made == nullptr) return failed(cudaErrorMemoryAllocation);
  *block = reinterpret_cast<void*>(made->base);
  return cudaSuccess;
}
cudaError_t give_back(void* block) {
  if (block == nullptr) return cudaSuccess;
  Locked locked;
  Stream::finish_all(locked);  // as the runtime does, in practice
  release(reinterpret_cast<std::uint64_t>(block));
  return cudaSuccess;
}
}  // namespace

cudaError_t cudaMalloc(void** block, std::size_t bytes) { return take(block, bytes, Kind::device); }
cudaError_t cudaMallocManaged(void** block, std::size_t bytes, unsigned) {
  return take(block, bytes, Kind::managed);
}
cudaError_t cudaHostAlloc(void** block, std::size_t bytes, unsigned) {
  return take(block, bytes, Kind::pinned);
}
cudaError_t cudaFree(void* block) { return give_back(block); }
cudaError_t cudaFreeHost(void* block) { return give_back(block); }

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t handle) {
  Stream& stream = stream_of(handle);
  Locked locked;
  if (kind != cudaMemcpyDefault)
    report("a copy that says where its memory lies, which is not emulated");
  static int copies = 0;
  if (const int which = planted("copy"); which > 0 && ++copies == which) bytes += sizeof(float);
  const Range source = range(from, bytes, Access::read, "a copy"),
              target = range(to, bytes, Access::write, "a copy");
  put(locked, stream, "a copy", [source, target, bytes] {
    std::memmove(target.host, source.host, bytes);
    return intervals(source, target);
  });
  // The host's own memory is free again, or filled, when the call returns.
  if (!source.known || !target.known) stream.finish(locked);
  return cudaSuccess;
}
cudaError_t cudaMemset2DAsync(void* to, std::size_t stride, int value, std::size_t row_bytes,
                              std::size_t rows, cudaStream_t handle) {
  Stream& stream = stream_of(handle);
  Locked locked;
  const Range target = range(to, row_bytes, rows, stride, Access::write, "a fill");
  if (!target.known && rows > 0) report("a fill of the host's own memory");
  put(locked, stream, "a fill", [target, stride, value, row_bytes, rows] {
    for (std::size_t row = 0; row < rows; ++row)
      std::memset(target.host + row * stride, value, row_bytes);
    return target.intervals;
  });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return cudaMemset2DAsync(to, bytes, value, bytes, 1, stream);
}

// ---- streams and events

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  if (flags != cudaStreamNonBlocking)
    report("a stream that waits for the legacy default stream, which is not emulated");
  if (next_call_fails("stream")) return failed(cudaErrorMemoryAllocation);
  const OwnMemory memory;
  *stream = reinterpret_cast<cudaStream_t>(new Stream(device));
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete &stream_of(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  Stream& stream = stream_of(handle);
  Locked locked;
  stream.finish(locked);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  Stream& stream = stream_of(handle);
  const Locked locked;
  if (event_of(event).last) stream.wait(event_of(event).last);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (next_call_fails("event")) return failed(cudaErrorMemoryAllocation);
  *event = reinterpret_cast<cudaEvent_t>(
      new Event{(flags & cudaEventDisableTiming) == 0, device, nullptr});
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete &event_of(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  Stream& stream = stream_of(handle);
  const Locked locked;
  if (event_of(event).device != stream.device())
    report("an event of one device is recorded in a stream of another");
  event_of(event).last = stream.record();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Locked locked;
  if (const std::shared_ptr<Moment> last = event_of(event).last) Stream::finish(locked, *last);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Locked locked;
  const Moment* const last = event_of(event).last.get();
  if (last == nullptr) return cudaSuccess;
  return last->reached ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* time_ms, cudaEvent_t from, cudaEvent_t to) {
  const Locked locked;
  const Event &first = event_of(from), &second = event_of(to);
  if (!first.timed || !second.timed || !first.last || !second.last)
    return failed(cudaErrorInvalidResourceHandle);
  if (!first.last->reached || !second.last->reached) return failed(cudaErrorNotReady);
  *time_ms = std::chrono::duration<float, std::milli>(second.last->time - first.last->time).count();
  return cudaSuccess;
}
