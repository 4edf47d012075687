/// @file What deck, plan and launch say of a training, as the engine and the log take it.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "engine/engine.hpp"
#include "io/metrics_log.hpp"
#include "io/trace.hpp"
#include "prepared.hpp"
#include "screen.hpp"

namespace brume::app {

/// How long a job may take.
struct TimeLimit {
  double s = std::numeric_limits<double>::infinity();  ///< from its start on
  bool is_slurms = false;                              ///< and not that of --max-minutes
};

/// --max-minutes, or the end of Slurm's time where that comes sooner. An end that was before the
/// job's start is left over from another one: the log says that it sets no limit.
TimeLimit time_limit(double max_minutes, std::chrono::steady_clock::time_point start);

/// @throws Error(input) where a pattern of training.optimizer.groups fits no parameter
void require_groups_fit(const deck::Deck& deck, const model::Config& model);

/// @param steps       of the whole training
/// @param threads     of this rank
/// @param first_core  of these on the node; -1: wherever the system puts them
engine::Settings engine_settings(const deck::Deck& deck, std::int64_t steps, int threads,
                                 int first_core);

/// What a job's log begins with: version, deck, ranks, nodes, threads, transport, seed.
/// @param hosts  [rank] name of the node it is on
std::string head(const RunOptions& options, const deck::Deck& deck,
                 const std::vector<std::string>& hosts, int threads, const std::string& transport);

io::Yardstick yardstick(const Prepared& run);

/// @param rank_0  its predicted iteration
Expectation expectation(const Prepared& run, double iteration_s, const io::RankTimeline& rank_0,
                        int ranks_per_node);

}  // namespace brume::app
