/// @file Communicators of device memory: NCCL, or MPI with a stop in pinned host memory. Programs
/// use comm::device_group, which chooses.
#pragma once

#include <memory>

#include "comm/communicator.hpp"

namespace brume::comm {

/// NCCL, whose unique id travels over `host`. Collective over `host`; every rank needs a device of
/// its own, the calling thread's.
///
/// @param timeout_s  a peer that does not come to the start in time is an error
/// @throws Error(input) when ranks share a device, Error(network) naming NCCL's error
std::unique_ptr<Communicator> nccl_communicator(std::unique_ptr<Communicator> host,
                                                double timeout_s = 300.0);

/// For ranks that share a device: copies out, communicates over `host`, copies in. Same bits as
/// `host`.
std::unique_ptr<Communicator> staged_communicator(std::unique_ptr<Communicator> host);

/// Whether each rank of the group has a device of its own. Collective over `host`.
bool devices_differ(Communicator& host);

}  // namespace brume::comm
