/// @file Times work on all ranks at once: they share cores and memory in training too.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/statistics.hpp"
#include "comm/communicator.hpp"
#include "device/memory.hpp"
#include "device/stream.hpp"

namespace brume::profiler {

using Work = std::function<void()>;

/// The monotonic clock, which all processes of a node share [s].
inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// All members are collective over `world`, and what they return is the same on all ranks. With a
/// device, the thread that makes a bench works in a stream as long as there is one, and what is
/// timed ends when that stream is done.
class Bench {
 public:
  /// @param threads  cores that a rank computes with
  Bench(comm::Communicator& world, int ranks_per_node, int threads);

  comm::Communicator& world() const { return world_; }
  comm::Communicator& node() const { return *node_; }  ///< the ranks of this rank's node

  /// The cores that this rank computes on in training: of a channel's thread for good, of the
  /// calling thread while the result lives. Transfers are left wherever the system puts them.
  void compute_here() const;
  device::BoundThread bound() const { return {first_core_, threads_}; }

  /// Calls in turn use other memory until so many bytes were met: in training an operator finds
  /// neither its weights nor what was saved for it in a cache.
  std::int64_t turn_bytes() const { return turn_bytes_; }

  /// Logs on rank 0 what was measured since the last call, with the time it took.
  void report(const std::string& what);

  /// Runs `prepare`; false when it threw on some rank, which then names it in the log.
  bool prepared(const std::string& name, const Work& prepare);

  /// Seconds that one call of `work` takes while all ranks call it as often: after a warm-up, the
  /// median over repetitions of loops that start after a barrier, each timed from the first rank's
  /// start to the last rank's end. Nothing when `work` threw on some rank, which then names it.
  /// Work of a device is waited for once a loop.
  ///
  /// @param work  empty on ranks that have no part in it: they look on
  /// @throws Error(network) as `work` does: a group that lost a message cannot go on
  std::optional<double> seconds(const std::string& name, const Work& work);

  /// Makes durations of moments: from the first start on a node to its last end, on the slowest
  /// node. A rank that waits for a core starts late: its own clock would not show that it waited.
  ///
  /// @param ends_s  [s] in: this rank's moments of `now_s`; out: what all ranks agree on
  void agree(double start_s, std::span<double> ends_s);

 private:
  bool attempt(const std::string& name, const Work& work);
  bool all(bool mine);

  comm::Communicator& world_;
  int threads_;
  int first_core_;  ///< -1: wherever the system puts it
  std::int64_t turn_bytes_;
  std::unique_ptr<comm::Communicator> node_;
  std::unique_ptr<device::Stream> stream_;  ///< of the calling thread; null on hosts
  double reported_s_ = now_s();
};

/// Arrays of one measurement after another. The k-th array takes the memory of the last one's k-th
/// when that is large enough, so the system is asked for memory only when something grows.
class Operands {
 public:
  explicit Operands(device::Tier tier = device::Tier::device) : tier_(tier) {}

  /// Operands that are only counted: all arrays are empty, and `bytes` says what they would take.
  static Operands counted();

  void restart() { next_ = 0, bytes_ = 0, numbers_.clear(); }
  void release() { restart(), slots_.clear(); }  ///< gives all memory back
  template <class Storage>
  std::span<Storage> values(std::int64_t count);  ///< in [-1, 1); any Storage
  std::span<float> zeros(std::int64_t count);
  template <class Element>
  std::span<Element> copy_of(std::span<const Element> values);  ///< float or int32_t
  std::span<std::int32_t> tokens(std::int64_t count, std::int64_t below);
  /// Keeps numbers in host memory until the next restart.
  std::span<const std::int32_t> on_host(std::vector<std::int32_t> numbers) {
    return numbers_.emplace_back(std::move(numbers));
  }

  std::int64_t bytes() const { return bytes_; }  ///< of the arrays since the last restart

 private:
  template <class Element>
  std::span<Element> take(std::int64_t count);

  device::Tier tier_;
  bool counts_only_ = false;
  std::vector<device::Memory> slots_;
  std::deque<std::vector<std::int32_t>> numbers_;  ///< whose elements stay where they are
  std::size_t next_ = 0;
  std::int64_t bytes_ = 0;
};

}  // namespace brume::profiler
