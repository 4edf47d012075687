/// @file NCCL, for those who do not leave the choice to comm::device_group.
#pragma once

#include <memory>

#include "comm/communicator.hpp"

namespace brume::comm {

/// A communicator by NCCL, whose unique id travels over `host`. Collective over `host`; every rank
/// needs a device of its own, the calling thread's.
///
/// @param most_blocks  that the kernel of one transfer takes; 0: as NCCL likes
/// @param timeout_s    a peer that does not come to the start in time is an error
/// @throws Error(input) when ranks share a device, Error(network) naming NCCL's error
std::unique_ptr<Communicator> nccl_communicator(std::unique_ptr<Communicator> host,
                                                int most_blocks = 0, double timeout_s = 300.0);

/// Whether each rank of the group has a device of its own. Collective over `host`.
bool devices_differ(Communicator& host);

}  // namespace brume::comm
