/// @file Chooses what carries device memory between ranks.
#include "comm/device_group.hpp"

#include <nccl.h>
#include <unistd.h>

#include <cstdlib>
#include <set>
#include <string_view>

#include "base/error.hpp"
#include "comm/cuda.hpp"
#include "device/cuda.hpp"

namespace brume::comm {
namespace {

enum class Transport { nccl, staged };

/// Collective over `host`.
Transport transport(Communicator& host) {
  const char* asked = std::getenv("BRUME_TRANSPORT");
  const std::string_view wish = asked ? asked : "";
  require(wish.empty() || wish == "nccl" || wish == "staged", Failure::input,
          "BRUME_TRANSPORT = {}: expected nccl or staged, or nothing for the better one", wish);
  if (wish == "nccl") return Transport::nccl;
  return wish == "staged" || !devices_differ(host) ? Transport::staged : Transport::nccl;
}

}  // namespace

bool devices_differ(Communicator& host) {
  int device = 0;
  device::cuda_check(cudaGetDevice(&device), "asking for the device");
  char bus[32] = {};
  device::cuda_check(cudaDeviceGetPCIBusId(bus, sizeof bus, device), "asking for a bus id");
  char node[256] = {};
  gethostname(node, sizeof node - 1);
  const std::vector<std::string> all = host.gather(std::string(node) + ' ' + bus);
  return std::set<std::string>(all.begin(), all.end()).size() == all.size();
}

std::unique_ptr<Communicator> device_group(std::unique_ptr<Communicator> host) {
  // A group of one has nothing to carry: NCCL would keep buffers for it.
  if (host->size() == 1 || transport(*host) == Transport::staged)
    return staged_communicator(std::move(host));
  return nccl_communicator(std::move(host));
}

std::string device_transport(Communicator& host) {
  if (transport(host) == Transport::staged) return "pinned host memory and MPI";
  int version = 0;
  ncclGetVersion(&version);
  return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace brume::comm
