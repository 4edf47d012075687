/// @file Where the profile comes from: the deck's file, the cache, or a measurement now.
#pragma once

#include "base/numbers.hpp"
#include "comm/communicator.hpp"
#include "deck/deck.hpp"
#include "hardware/machine.hpp"
#include "model/model.hpp"

namespace brume::app {

/// Work that plans are for.
enum class Purpose { training, generation };
/// @param name  "training" or "generation"
Purpose purpose_of(const std::string& name);

/// The profiles a search needs. Collective over `world`; measured at most once and cached.
///
/// @param longest_s  that measuring may take
hardware::Machine obtain_machine(comm::Communicator& world, int ranks_per_node,
                                 const deck::Deck& deck, const model::Config& model,
                                 Purpose purpose = Purpose::training, double longest_s = infinity);

/// The same for a process without MPI: the deck's files, the cache, or this machine measured for
/// some minutes with ranks that are threads.
hardware::Machine obtain_machine_alone(const deck::Deck& deck, const model::Config& model,
                                       Purpose purpose = Purpose::training);

/// Takes from a machine what it knows of pairs of nodes, where they are not those of the job.
/// Collective over `world`. @return whether they are not
bool leave_out_other_nodes(comm::Communicator& world, int ranks_per_node,
                           hardware::Machine& machine);

/// Measures now, whatever is cached. Collective over `world`.
/// @throws Error(input) for a cluster of several groups, which are measured one by one
hardware::Profile measure_profile(comm::Communicator& world, int ranks_per_node,
                                  const deck::Deck& deck, const model::Config& model,
                                  Purpose purpose = Purpose::training, double longest_s = infinity);

}  // namespace brume::app
