/// @file Communication between the memories that ranks compute in: hosts' or devices'.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.hpp"

namespace brume::comm {

/// A group that carries all_to_all carries messages.
enum class Carries { collectives, messages };

/// A group of the ranks of `host` for what lies in device::Memory. In a build for hosts it is
/// `host` itself.
///
/// A group over device memory; calls work in the order of the calling thread's
/// channel: they return when the transfer is in its stream, and the memory may be used again in
/// stream order. Barrier, broadcast and gather stay on the host. NCCL carries it where each rank
/// has a device of its own, else MPI with a stop in pinned memory; $BRUME_TRANSPORT = nccl,
/// nccl_serial or staged asks for one of them. Sums by NCCL are in its own order, which is fixed by
/// its algorithm, the size of the message and the topology, and of values of 16 bits each partial
/// sum is rounded; the staged path has the bits of `host`.
///
/// Collective over `host`.
/// @param at_once  groups of which a rank may have a transfer on its device at once: the kernels of
///                 as many find room on it side by side
/// @throws Error(input)    for another transport, or NCCL between ranks that share a device
/// @throws Error(network)  when NCCL does not start
std::unique_ptr<Communicator> device_group(std::unique_ptr<Communicator> host, int at_once = 1,
                                           Carries carries = Carries::collectives);

/// The staged path: copies out, communicates over `host`, copies in. Same bits as `host`.
std::unique_ptr<Communicator> staged_communicator(std::unique_ptr<Communicator> host);

/// Whether collectives of different groups are to run one after the other, as BRUME_TRANSPORT =
/// nccl_serial asks. Messages have no part in that order.
bool one_collective_at_a_time();

/// The carrier between these ranks, for the log. Collective over `host`.
std::string device_transport(Communicator& host);

}  // namespace brume::comm
