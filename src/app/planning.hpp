/// @file From deck to plan: what `run` and `plan` share.
#pragma once

#include <string>
#include <vector>

#include "analyzer/analyzer.hpp"
#include "comm/communicator.hpp"
#include "deck/deck.hpp"
#include "hardware/machine.hpp"
#include "io/trace.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "schedule/program.hpp"
#include "schedule/simulate.hpp"
#include "tuner/tuner.hpp"

namespace brume::app {

/// Reads a deck and what its model.config names. One that is for the machine at hand may leave out
/// its memory: it is then a third of what is installed, and as much for all ranks of a node.
deck::Deck load_deck(const std::string& path, const std::vector<std::string>& overrides);
/// The same on rank 0, for all; where ranks compute on devices, cluster.memory_gib is then that of
/// the smallest, or a rank's share of it. Collective over `world`.
deck::Deck load_deck(comm::Communicator& world, int ranks_per_node, const std::string& path,
                     const std::vector<std::string>& overrides);

/// Writes to standard output. @throws Error(storage)
void print(const std::string& text);

/// Refuses a file that could not be written, before long work. @throws Error(storage)
void check_writable(const std::string& path);

/// Refuses decks that count as Mist does, which is for comparisons only. @throws Error(input)
void refuse_mist(const deck::Deck& deck, const char* verb);

/// Whether a plan that was not searched for this deck can run as it asks. @throws Error(input)
void check_given(const plan::Plan& plan, const deck::Deck& deck, const model::Config& model,
                 const hardware::Cluster& cluster);

/// The best plans for the deck, of those that the trainer of `search.trainer` can run where it
/// names one. A plan pads sequences that its cp does not cut evenly (plan::padding).
///
/// @param model       without padding
/// @param keys        the deck's, or a part of them
/// @param state_file  file that keeps the search's state, from which it continues; empty: none
/// @throws Error(infeasible), and Error(input) where the trainer has nothing like the model
tuner::Result search(const deck::Deck& deck, const deck::SearchKeys& keys,
                     const model::Config& model, const hardware::Cluster& cluster,
                     const hardware::Machine& machine, const tuner::Options& options,
                     const std::string& state_file = {});

/// Searches a plan for the deck and shows it in the log with the reasons. @throws Error(infeasible)
///
/// @param state_file  file that keeps the search's state; empty: none
plan::Plan search_plan(const deck::Deck& deck, const model::Config& model,
                       const hardware::Machine& machine, const std::string& state_file);

/// Bytes of each rank's equal part of the host memory that its node has left.
std::vector<std::int64_t> spare_host_bytes(const std::vector<schedule::Program>& programs,
                                           const plan::Plan& plan,
                                           const hardware::Cluster& cluster);

/// Refuses a plan whose Programs need more memory than the cluster gives. @throws Error(infeasible)
/// naming rank, bytes needed, bytes there, and the three largest contributors
void check_memory(const std::vector<schedule::Program>& programs, const plan::Plan& plan,
                  const hardware::Cluster& cluster);

/// A simulation as timelines of all ranks.
std::vector<io::RankTimeline> timelines(const std::vector<schedule::Program>& programs,
                                        const schedule::Simulation& simulation);

}  // namespace brume::app
