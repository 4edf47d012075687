/// @file How a verb runs on all ranks of an MPI job, and how they leave when one fails.
#pragma once

#include <functional>

#include "comm/session.hpp"

namespace brume::app {

/// Starts MPI, runs `body` on every rank and finalizes.
///
/// An agreed error is said once, by rank 0, and all ranks return its code. Any other exception is
/// known to this rank alone while others may wait for it: the rank says it and ends the whole job.
int on_all_ranks(const std::function<int(comm::Session&, comm::Communicator&)>& body);

}  // namespace brume::app
