/// @file Chooses what carries device memory between ranks.
#include "comm/device_group.hpp"

#include <nccl.h>

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

}  // namespace

bool devices_differ(Communicator& host) {
  int device = 0;
  device::cuda_check(cudaGetDevice(&device), "asking for the device");
  char bus[32] = {};
  device::cuda_check(cudaDeviceGetPCIBusId(bus, sizeof bus, device), "asking for a bus id");
  const std::vector<std::string> all = host.gather(host_name() + ' ' + bus);
  return std::set<std::string>(all.begin(), all.end()).size() == all.size();
}

std::unique_ptr<Communicator> device_group(std::unique_ptr<Communicator> host) {
  // A group of one has nothing to carry: NCCL would keep buffers for it.
  if (host->size() == 1 || !takes_nccl(*host)) return staged_communicator(std::move(host));
  return nccl_communicator(std::move(host));
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
