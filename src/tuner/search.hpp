/// @file Best-first search over pipeline configurations.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "budget.hpp"
#include "pipeline_search.hpp"
#include "search_input.hpp"
#include "strategy.hpp"
#include "tuner/state.hpp"

namespace brume::tuner {

class WorkerPool;
struct Search;

/// A plan that was found, and the searcher's configuration that excludes it; none: no searcher
/// found it.
struct Found {
  Candidate candidate;
  std::optional<std::size_t> search;
};

/// Bounds of configurations, by stages, microbatches and run-ahead [s].
using Bounds = std::map<std::tuple<int, int, int>, double>;

/// The configurations that may hold the fastest plan are looked at more closely, some at once,
/// until the fastest prediction of a plan that was found is below the bounds of all configurations:
/// then that plan is next.
class Searcher {
 public:
  /// @param known  bounds that a search over these configurations and others has proven
  Searcher(SearchInput input, WorkerPool& workers, std::vector<PipelineConfig> configs,
           const Bounds& known = {});

  /// The next plan by prediction, were plans of `known_s` no longer of interest; when the deadline
  /// has passed, the fastest known. None when none is left, see done(), or known.
  std::optional<Found> next(double known_s);

  /// Whether all configurations were looked at as far as plans faster than `known_s` ask for.
  bool done(double known_s) const;

  /// Proven by the model: no plan is faster [s].
  double bound_s() const;
  /// The same of each configuration.
  Bounds bounds() const;

  /// Takes a stage's strategy out of the search: it was seen not to fit.
  void exclude(const Found& found, int stage);
  /// Requires from now on that the predicted memory of a plan's configuration fits in this share.
  void take_less_memory(const Found& found, double share);

  /// Whether GLPK comes to the same bound for the configuration of a plan.
  bool confirms(const Found& found);

  /// @param worth_s  time below which plans are of interest that were predicted only
  SearcherState state(double worth_s) const;
  /// Continues the search of a state. @throws Error(input) if it has other configurations
  void restore(const SearcherState& state);
  /// The plan of some points of a state.
  Found restored(int search, const std::vector<double>& points, double predicted_s) const;

  std::size_t num_configs() const { return searches_.size(); }
  void add_to(Search& statistics) const;

 private:
  std::size_t checked(int search) const;
  std::vector<std::size_t> most_promising(double known_s) const;
  void begin(const std::vector<std::size_t>& round);
  void prepare(const std::vector<std::size_t>& round, double known_s);
  void forget_candidates(std::size_t search);
  void look_at(const std::vector<std::size_t>& round, double known_s);

  SearchInput input_;
  WorkerPool& workers_;
  Axes axes_;
  Axes split_axes_;  ///< axes of split backwards
  /// [microbatches, run-ahead, zero bubble, layouts]
  std::map<std::tuple<int, int, bool, std::vector<Layout>>, std::shared_ptr<Fronts>> fronts_;
  std::deque<PipelineSearch> searches_;
  std::vector<Found> candidates_;  ///< not yet returned
  std::vector<SearcherState::Excluded> excluded_;
  int milp_solves_ = 0;
};

}  // namespace brume::tuner
