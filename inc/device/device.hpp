/// @file The device of a rank: choosing it, copies, the queues behind channels. Hosts and NVIDIA
/// devices have an implementation each; a build links one of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "device/stream.hpp"

namespace brume::device {

/// Sets what the driver reads from the environment when it starts, but for what somebody has set.
/// To be called before MPI starts: one that knows devices starts the driver. On hosts nothing is to
/// be done.
///
/// @param with_peers  all kernels of all libraries are loaded at once, before any of them can wait
///                    for a peer's; a rank alone loads each when it calls it first
void set_environment(bool with_peers);

/// Gives the calling thread its rank's device: devices are dealt out by the rank's place on its
/// node, and shared when there are more ranks. Memory and streams that the thread makes later are
/// of this device. On hosts nothing is to be done.
///
/// @param ranks  of the job
/// @throws Error(resource) when this node has no device
/// @throws Error(input)    when the environment lets the streams of ranks with peers wait for each
///                         other
void use_device(int node_rank, int ranks);

/// The calling thread's device.
struct Description {
  std::string name;               ///< "NVIDIA H200"; empty: ranks compute on the host
  std::string driver = {};        ///< "driver of CUDA 13.0"
  std::int64_t memory_bytes = 0;  ///< memory of the device, whoever uses it
  std::int64_t free_bytes = 0;    ///< free part of it, now
  int on_node = 0;                ///< devices that this node shows the process
};
Description describe_device();

/// Whether ranks of this build compute on devices.
inline bool on_device() { return !describe_device().name.empty(); }

/// A queue for a channel that works on the calling thread's device; null on hosts, where the
/// channel's thread works itself.
std::unique_ptr<Stream> make_stream();

/// Copies in the order of the calling thread's channel; at once where that has no stream. Each side
/// is memory of either tier; it may be used again in that order.
void copy(void* to, const void* from, std::int64_t bytes);

/// Sets each byte to `value`, in the order of the calling thread's channel.
void fill(void* to, std::byte value, std::int64_t bytes);

/// Waits until what the calling thread's channel was given so far is done.
void finish();

/// Copies at once, whatever channels do, and returns when it is done: for memory that no channel
/// uses now. Each side is memory of either tier or any other of the host. Any thread.
void copy_now(void* to, const void* from, std::int64_t bytes);

/// Whether a profiler of a device's vendor looks on.
bool is_profiled();

/// Names a stretch of the calling thread's time for it.
class Range {
 public:
  /// @param name  gives the text; called only where somebody reads it
  template <typename Name>
  explicit Range(const Name& name) : open_(is_profiled()) {
    if (open_) begin(name());
  }
  ~Range() {
    if (open_) end();
  }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

 private:
  static void begin(const std::string& name);
  static void end();

  bool open_;
};

}  // namespace brume::device
