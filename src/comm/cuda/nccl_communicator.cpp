/// @file NCCL behind the communicator's interface.
#include <nccl.h>

#include <chrono>
#include <cstdlib>
#include <thread>
#include <type_traits>

#include "../host_half.hpp"
#include "../parts.hpp"
#include "base/error.hpp"
#include "comm/cuda.hpp"
#include "device/cuda.hpp"

namespace brume::comm {
namespace {

void nccl_check(ncclResult_t result, const char* what) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  // What CUDA refuses NCCL is mostly memory for its buffers.
  const bool lacks = result == ncclUnhandledCudaError;
  throw Error(lacks ? Failure::resource : Failure::network, "NCCL: {} failed: {} ({}){}", what,
              ncclGetErrorString(result), ncclGetLastError(nullptr),
              lacks ? "; " + device::cuda_memory_left() : "");
}

template <typename T>
ncclDataType_t nccl_type() {
  if constexpr (std::is_same_v<T, float>) return ncclFloat;
  if constexpr (std::is_same_v<T, double>) return ncclDouble;
  if constexpr (std::is_same_v<T, bfloat16>) return ncclBfloat16;
  if constexpr (std::is_same_v<T, float16>) return ncclHalf;
}

/// Owns a communicator and ends it without its peers, which may be gone: where peers went on, ranks
/// have agreed on another thing since their last collective, so nothing is on its way any more.
/// Also when it never started.
struct Group {
  Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group() {
    if (comm != nullptr) ncclCommAbort(comm);
  }
  operator ncclComm_t() const { return comm; }

  ncclComm_t comm = nullptr;
};

class NcclCommunicator final : public HostHalf {
 public:
  NcclCommunicator(std::unique_ptr<Communicator> host, int most_blocks, double timeout_s)
      : HostHalf(std::move(host)), most_blocks_(most_blocks), timeout_s_(timeout_s) {
    ncclUniqueId id{};
    if (rank() == 0) nccl_check(ncclGetUniqueId(&id), "making a unique id");
    host_->broadcast(std::as_writable_bytes(std::span(&id, 1)), 0);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;  // so that a lost peer is an error and not a hang
    if (most_blocks > 0) config.maxCTAs = most_blocks;
    nccl_check(ncclCommInitRankConfig(&group_.comm, size(), id, rank(), &config), "starting");
    settle("starting");
  }

  void all_reduce(Values values) override {
    std::visit([&](auto all) { reduce(all, ncclSum); }, values);
  }
  void all_reduce(std::span<double> values, Reduction reduction) override {
    reduce(values, operation(reduction));
  }
  void reduce_scatter(Values values) override {
    std::visit([&](auto all) { scatter_sums(all); }, values);
  }
  void all_gather(Values values) override {
    std::visit([&](auto all) { gather_parts(all); }, values);
  }
  /// Sends and receives in one group, so that none of them waits for the order of the others.
  void all_to_all(std::span<const std::byte> out, std::span<const std::size_t> out_bytes,
                  std::span<std::byte> in, std::span<const std::size_t> in_bytes) override {
    const auto outgoing = parts_of(out, out_bytes, size());
    const auto incoming = parts_of(in, in_bytes, size());
    const auto own = std::size_t(rank());
    require_part(outgoing[own].size(), incoming[own].size(), own);
    ncclResult_t result = ncclGroupStart();
    const auto call = [&](const auto& transfer, auto part, std::size_t peer) {
      if (result == ncclSuccess && !part.empty())
        result =
            transfer(part.data(), part.size(), ncclUint8, int(peer), group_, device::cuda_stream());
    };
    for (std::size_t peer = 0; peer < outgoing.size(); ++peer) {
      call(ncclSend, outgoing[peer], peer);
      call(ncclRecv, incoming[peer], peer);
    }
    const ncclResult_t end = ncclGroupEnd();  // also after a failure
    nccl_check(result == ncclSuccess ? end : result, "all-to-all");
    settle("all-to-all");
  }
  void send(ConstValues values, int peer) override {
    std::visit([&](auto out) { send_values(out, peer); }, values);
  }
  void recv(Values values, int peer) override {
    std::visit([&](auto in) { receive_values(in, peer); }, values);
  }

  std::unique_ptr<Communicator> split(int colour, int key) override {
    auto host = host_->split(colour, key);
    return host ? nccl_communicator(std::move(host), most_blocks_, timeout_s_) : nullptr;
  }

 private:
  static ncclRedOp_t operation(Reduction reduction) {
    switch (reduction) {
      case Reduction::min: return ncclMin;
      case Reduction::max: return ncclMax;
      case Reduction::sum: break;
    }
    return ncclSum;
  }

  template <typename T>
  void reduce(std::span<T> values, ncclRedOp_t operation) {
    nccl_check(ncclAllReduce(values.data(), values.data(), values.size(), nccl_type<T>(), operation,
                             group_, device::cuda_stream()),
               "all-reduce");
    settle("all-reduce");
  }
  template <typename T>
  void scatter_sums(std::span<T> values) {
    const std::size_t part = part_size(values.size(), size());
    nccl_check(ncclReduceScatter(values.data(), values.data() + part * std::size_t(rank()), part,
                                 nccl_type<T>(), ncclSum, group_, device::cuda_stream()),
               "reduce-scatter");
    settle("reduce-scatter");
  }
  template <typename T>
  void gather_parts(std::span<T> values) {
    const std::size_t part = part_size(values.size(), size());
    nccl_check(ncclAllGather(values.data() + part * std::size_t(rank()), values.data(), part,
                             nccl_type<T>(), group_, device::cuda_stream()),
               "all-gather");
    settle("all-gather");
  }
  template <typename T>
  void send_values(std::span<const T> values, int peer) {
    nccl_check(
        ncclSend(values.data(), values.size(), nccl_type<T>(), peer, group_, device::cuda_stream()),
        "send");
    settle("send");
  }
  template <typename T>
  void receive_values(std::span<T> values, int peer) {
    nccl_check(
        ncclRecv(values.data(), values.size(), nccl_type<T>(), peer, group_, device::cuda_stream()),
        "recv");
    settle("recv");
  }

  /// Calls return before NCCL has taken the work; waits until it has.
  void settle(const char* what) {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    const auto until = start + std::chrono::duration<double>(timeout_s_);
    for (ncclResult_t state = ncclInProgress; state == ncclInProgress;) {
      nccl_check(ncclCommGetAsyncError(group_, &state), what);
      nccl_check(state, what);
      require(Clock::now() < until, Failure::network,
              "NCCL: {} of {} ranks took more than {} s: a rank may be missing", what, size(),
              timeout_s_);
      if (state != ncclInProgress) return;
      // Most calls are taken within microseconds; the first ones make connections.
      if (Clock::now() < start + std::chrono::microseconds(100))
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  Group group_;
  int most_blocks_;
  double timeout_s_;
};

/// Refuses what somebody asks NCCL for that lets ranks wait for each other for ever: channels
/// launch in no one order, and in the room that each gets.
void check_environment(int most_blocks) {
  const auto asked = [](const char* name) {
    const char* text = std::getenv(name);
    return text ? std::atoi(text) : 0;
  };
  require(
      asked("NCCL_LAUNCH_ORDER_IMPLICIT") == 0, Failure::input,
      "NCCL_LAUNCH_ORDER_IMPLICIT: transfers would wait for each other in an order that differs "
      "between ranks: found {}, expected 0. Unset it",
      asked("NCCL_LAUNCH_ORDER_IMPLICIT"));
  require(most_blocks == 0 || asked("NCCL_MAX_CTAS") <= most_blocks, Failure::input,
          "NCCL_MAX_CTAS: the transfers of this plan would not find room on a device together: "
          "found {}, expected at most {}. Lower it, or unset it",
          asked("NCCL_MAX_CTAS"), most_blocks);
}

}  // namespace

std::unique_ptr<Communicator> nccl_communicator(std::unique_ptr<Communicator> host, int most_blocks,
                                                double timeout_s) {
  check_environment(most_blocks);
  require(devices_differ(*host), Failure::input,
          "NCCL: ranks share a device, which it does not support: start one rank per device");
  return std::make_unique<NcclCommunicator>(std::move(host), most_blocks, timeout_s);
}

}  // namespace brume::comm
