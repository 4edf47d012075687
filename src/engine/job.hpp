/// @file What the ranks of a job do together: take memory, and leave.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "arena.hpp"
#include "comm/communicator.hpp"
#include "engine/settings.hpp"

namespace brume::engine {

/// What a rank tells the others: the node that it is on and the host memory that it needs there.
std::string need(const std::string& node, std::int64_t bytes);

/// What all ranks of `node` need together [bytes].
/// @param needs  [ranks] as `need` writes them
std::int64_t bytes_of_node(const std::string& node, const std::vector<std::string>& needs);

/// Takes memory and disk, on all ranks or on none. Collective.
/// @throws AgreedError(resource) before any rank has taken memory that its node has not
Arena reserve(const schedule::Arenas& bytes, const Settings& settings, comm::Communicator& world);

/// Ends the job. Nobody can agree any more: peers may wait for this rank in any channel. Called by
/// the channel's thread.
/// @param doing  "step 5"
void leave(comm::Communicator& world, const std::string& doing, const std::exception_ptr& failure);

}  // namespace brume::engine
