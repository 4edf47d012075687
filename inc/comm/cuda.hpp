/// @file Communicators of device memory: NCCL, or MPI with a stop in pinned host memory.
#pragma once

#include <memory>

#include "comm/communicator.hpp"
#include "device/cuda.hpp"

namespace brume::comm {

/// Both kinds take device pointers and work in the calling thread's stream (device::CudaStream): a
/// call returns when the transfer is in the stream, and the memory may be used again in stream
/// order. `host` carries what is no device memory (barrier, gather, broadcast, doubles) and must
/// be a group of the same ranks.

/// NCCL, whose unique id travels over `host`. Collective over `host`; every rank needs a device of
/// its own. Sums are in NCCL's order, and of bf16 values each partial sum is rounded.
///
/// @param device     this rank's
/// @param timeout_s  a peer that does not come to the start in time is an error
/// @throws Error(network) naming NCCL's error, or the ranks that share a device
std::unique_ptr<Communicator> nccl_communicator(std::unique_ptr<Communicator> host, int device,
                                                double timeout_s = 300.0);

/// For ranks that share a device, and machines without NCCL: copies out, communicates over `host`,
/// copies in. Same bits as `host`.
std::unique_ptr<Communicator> staged_communicator(std::unique_ptr<Communicator> host);

/// Whether each rank of the group has a device of its own. Collective over `host`.
bool devices_differ(Communicator& host, int device);

}  // namespace brume::comm
