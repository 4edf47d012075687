/// @file State of a search: proven bounds and simulated plans, for a search that continues it.
#pragma once

#include <vector>

#include "deck/schema.hpp"
#include "plan/plan.hpp"

namespace brume::tuner {

/// State of configurations that are searched together, in their order.
struct SearcherState {
  /// A predicted plan that is not simulated yet.
  struct Waiting {
    int config = 0;
    double predicted_s = 0.0;
    std::vector<double> points = {};  ///< numbers of each stage's point
  };

  /// A strategy of a stage that was seen not to fit.
  struct Excluded {
    int config = 0;
    int after = 0;  ///< stages after it
    std::vector<double> point = {};
  };

  /// Progress of a configuration: nothing is known; its fastest strategies, memory or not, have
  /// bounded it; its plans were found; no plan fits.
  enum Step { open, bounded, searched, nothing };

  std::vector<int> steps;             ///< [config]
  std::vector<double> bounds_s;       ///< [config] proven
  std::vector<double> memory_errors;  ///< [config] PipelineConfig::memory_error
  std::vector<Waiting> waiting = {};
  std::vector<Excluded> excluded = {};
};

/// State of a search. Reading its text checks types and ranges; a search checks the rest.
struct State {
  /// A plan that fits.
  struct Simulated {
    plan::Plan plan;
    double seconds = 0.0;
    double predicted_s = 0.0;
    bool coarse = true;        ///< simulated; else predicted, because it is too large
    bool given = false;        ///< adapted from a given plan
    bool other_order = false;  ///< found by the search for other orders than 1F1B
    int config = -1;           ///< configuration that holds it; -1: none
    std::vector<double> points = {};
  };

  SearcherState searcher, other_orders;
  int placed = 0;           ///< plans of other orders that were placed
  bool even_plans = false;  ///< plans of equal stages were simulated
  std::vector<Simulated> simulated;
  std::vector<plan::Plan> refused;  ///< plans of no configuration that do not fit
  std::vector<plan::Plan> climbed;  ///< plans from which no step is faster
};

const deck::Schema<State>& state_schema();

}  // namespace brume::tuner
