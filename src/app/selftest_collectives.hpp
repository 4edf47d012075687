/// @file Collectives of `selftest`.
#pragma once

#include "comm/communicator.hpp"

namespace brume::app {

/// Prints how many values of each collective are wrong. Collective over `world`.
/// @throws AgreedError when any value is wrong anywhere
void check_collectives(comm::Communicator& world, int ranks_per_node);

}  // namespace brume::app
