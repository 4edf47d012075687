/// @file Chooses what carries device memory between ranks.
#include "comm/device_group.hpp"

#include <nccl.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <set>
#include <string_view>

#include "base/error.hpp"
#include "base/host.hpp"
#include "comm/cuda.hpp"
#include "device/cuda.hpp"

namespace brume::comm {
namespace {

/// What the environment asks for; empty: the better one.
std::string_view wish() {
  const char* asked = std::getenv("BRUME_TRANSPORT");
  const std::string_view wish = asked ? asked : "";
  require(wish.empty() || wish == "nccl" || wish == "nccl_serial" || wish == "staged",
          Failure::input,
          "BRUME_TRANSPORT = {}: expected nccl, nccl_serial or staged, or nothing for the best one",
          wish);
  return wish;
}

/// Collective over `host`.
bool takes_nccl(Communicator& host) {
  return wish().empty() ? devices_differ(host) : wish() != "staged";
}

/// Blocks that one transfer may take, where each may have a multiprocessor of its own beside those
/// of other groups, on all ranks. Collective over `host`.
int most_blocks(Communicator& host, int at_once, Carries carries) {
  int device = 0, multiprocessors = 0;
  device::cuda_check(cudaGetDevice(&device), "asking for the device");
  device::cuda_check(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
      "asking for the device's multiprocessors");
  double least = std::max(1, multiprocessors / at_once);
  host.all_reduce(std::span(&least, 1), Reduction::min);
  const auto blocks = unsigned(least);
  // For messages NCCL rounds the number of its channels up to a power of two.
  return int(carries == Carries::messages ? std::bit_floor(blocks) : blocks);
}

}  // namespace

bool devices_differ(Communicator& host) {
  int device = 0;
  device::cuda_check(cudaGetDevice(&device), "asking for the device");
  char bus[32] = {};
  device::cuda_check(cudaDeviceGetPCIBusId(bus, sizeof bus, device), "asking for a bus id");
  const std::vector<std::string> all = host.gather(host_name() + ' ' + bus);
  return std::set<std::string>(all.begin(), all.end()).size() == all.size();
}

std::unique_ptr<Communicator> device_group(std::unique_ptr<Communicator> host, int at_once,
                                           Carries carries) {
  // A group of one has nothing to carry: NCCL would keep buffers for it.
  if (host->size() == 1 || !takes_nccl(*host)) return staged_communicator(std::move(host));
  const int blocks = at_once > 1 ? most_blocks(*host, at_once, carries) : 0;
  return nccl_communicator(std::move(host), blocks);
}

bool one_collective_at_a_time() { return wish() == "nccl_serial"; }

std::string device_transport(Communicator& host) {
  if (!takes_nccl(host)) return "pinned host memory and MPI";
  int version = 0;
  ncclGetVersion(&version);
  return fmt::format("NCCL {}.{}.{}{}", version / 10000, version / 100 % 100, version % 100,
                     one_collective_at_a_time() ? ", one collective at a time" : "");
}

}  // namespace brume::comm
