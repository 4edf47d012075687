/// @file Finds the fastest plan that fits: intra-stage Pareto fronts, an inter-stage MILP,
/// simulation of the best.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <string>

#include "base/text.hpp"
#include "deck/deck.hpp"
#include "hardware/cluster.hpp"
#include "hardware/machine.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "tuner/progress.hpp"
#include "tuner/result.hpp"

namespace brume::tuner {

/// How a search goes about it.
struct Options {
  bool reasons = true;           ///< also look for ablations and the nearest infeasible plan
  int threads = 0;               ///< 0: all cores; the result does not depend on it
  std::size_t most_labels = 64;  ///< labels per state of the dynamic program before some are merged
  /// Every plan is taken as this makes it; bounds are those of all plans. None: as it is.
  std::function<plan::Plan(plan::Plan)> conform = {};
  Progress* progress = nullptr;
  const std::atomic<bool>* stop = nullptr;  ///< ends the search as its time limit does
};

/// Takes no longer than search.time_limit_s, but for a second or so.
///
/// @throws Infeasible when nothing fits: the plan that misses by least, by how many bytes, and what
/// would fit; and when no plan is known by the end of the time
Result tune(const model::Config& model, int global_batch, const hardware::Cluster& cluster,
            const hardware::Machine& machine, const deck::SearchKeys& search,
            const Options& options = {});

/// A plan in one line.
std::string summary(const plan::Plan& plan);

/// Report for people: the plan as a table, its reasons, next plans, plans that did not fit; tables
/// have at most so many columns.
std::string report(const Result& result, const hardware::Cluster& cluster,
                   std::size_t columns = usual_columns);

}  // namespace brume::tuner
