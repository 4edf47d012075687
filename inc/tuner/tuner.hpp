/// @file Finds the fastest plan that fits: intra-stage Pareto fronts, an inter-stage MILP,
/// simulation of the best.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "deck/deck.hpp"
#include "hardware/cluster.hpp"
#include "hardware/machine.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "tuner/progress.hpp"
#include "tuner/result.hpp"
#include "tuner/state.hpp"

namespace brume::tuner {

/// Times, strategies and placements that searches find, for later searches of the same model, which
/// are on fewer or more nodes, or have other limits or lists. The results are the same as without.
/// One search at a time.
class Cache {
 public:
  Cache();
  ~Cache();
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  struct Known;  ///< private to the sources
  /// Knowledge for a search; none of another model, of other times, or of too many searches.
  Known& of(const model::Config& model, const hardware::Machine& machine,
            const hardware::Cluster& cluster, int threads);

 private:
  std::unique_ptr<Known> known_;
};

/// How a search goes about it.
struct Options {
  bool reasons = true;           ///< also look for ablations and the nearest infeasible plan
  int threads = 0;               ///< 0: all cores; the result does not depend on it
  std::size_t most_labels = 64;  ///< labels per state of the dynamic program before some are merged
  /// Every plan is taken as this makes it; bounds are those of all plans. None: as it is.
  std::function<plan::Plan(plan::Plan)> conform = {};
  Progress* progress = nullptr;
  const std::atomic<bool>* stop = nullptr;  ///< ends the search as its time limit does
  /// Plans for other devices, batches or sequence lengths: adapted to this search
  /// (plan/adapted.hpp), the fastest one is simulated first.
  std::vector<plan::Plan> starts = {};
  Cache* cache = nullptr;        ///< earlier searches'; none: the search begins without
  const State* state = nullptr;  ///< state to continue from; none: the search begins
  std::string state_name = {};   ///< names it in messages
  /// Receives the state from time to time, and at the end of the search.
  std::function<void(const State&)> keep = {};
  double keep_every_s = 10.0;  ///< least time between two states
};

/// Takes no longer than search.time_limit_s, but for a second or so.
///
/// @throws Error(input) for a state that is not one of this search
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
