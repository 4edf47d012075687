/// @file Where the profile comes from: the deck's file, the cache, or a measurement now.
#pragma once

#include "comm/communicator.hpp"
#include "deck/deck.hpp"
#include "hardware/profile.hpp"
#include "model/model.hpp"

namespace brume::app {

/// Cores one rank computes with when `ranks_per_node` share a node.
int threads_per_rank(int ranks_per_node);

/// First of these cores for the rank in place `node_rank` of its node; -1 where the batch system
/// has bound the rank already, or ranks outnumber cores.
int first_core(int ranks_per_node, int node_rank);

/// The profile a search needs. Collective over `world`; measured at most once and cached.
hardware::Profile obtain_profile(comm::Communicator& world, int ranks_per_node,
                                 const deck::Deck& deck, const model::Config& model);

/// The same for a process without MPI: the deck's file, the cache, or this machine measured with
/// ranks that are threads.
hardware::Profile obtain_profile_alone(const deck::Deck& deck, const model::Config& model);

/// Measures now, whatever is cached. Collective over `world`.
hardware::Profile measure_profile(comm::Communicator& world, int ranks_per_node,
                                  const deck::Deck& deck, const model::Config& model);

}  // namespace brume::app
