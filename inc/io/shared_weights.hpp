/// @file Weights that go from one plan's slabs to another's in memory, as through a checkpoint.
#pragma once

#include <functional>
#include <vector>

#include "comm/communicator.hpp"
#include "engine/engine.hpp"

namespace brume::io {

/// Fills the weights among `to` with those that ranks own among `from`, whatever plans both are of.
/// Values are those that a checkpoint of `from` would give. Ranks broadcast their weights piece by
/// piece, so a rank holds 4 MiB more meanwhile. Collective.
///
/// @param on_piece  called after each piece
/// @throws AgreedError(bug) unless the ranks own each element once
void share_weights(comm::Communicator& world, const std::vector<engine::Slab>& from,
                   std::vector<engine::Slab> to, const std::function<void()>& on_piece = {});

}  // namespace brume::io
