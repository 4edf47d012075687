/// @file Plans whose passes go in another order than 1F1B: several chunks a stage, or backwards in
/// two parts.
#pragma once

#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "analyzer/analyzer.hpp"
#include "search.hpp"
#include "tuner/state.hpp"

namespace brume::tuner {

/// Share of a prediction's memory that the devices have room for; at least 1: it fits.
double fitting_share(const plan::Plan& plan, const analyzer::Prediction& prediction,
                     const hardware::Cluster& cluster);

/// Plans of other orders wait less for a pipeline to fill, so their bounds are low and tell hardly
/// anything, and predictions of chunks are up to a tenth too low where messages count. So nothing
/// is proven of them: once the fastest plan of 1F1B is known, those are placed and simulated that
/// are predicted to be faster, and count where they are simulated to be: the best one that fits of
/// each configuration, and of few of these.
class OtherOrders {
 public:
  /// @param like  only plans that are cut as this one is, in its order, but for run-ahead
  OtherOrders(const SearchInput& input, WorkerPool& workers, const plan::Plan* like = nullptr);

  /// The plan that should be placed next, were plans of `known_s` known; none when none is worth
  /// it.
  std::optional<Found> next(double known_s);

  /// Time below which a predicted and simulated plan counts, if the fastest known plan takes
  /// `known_s`.
  static double worth_s(double known_s);

  /// It was seen not to fit.
  void exclude(const Found& found);

  SearcherState state(double worth_s) const { return searcher_.state(worth_s); }
  int placed() const { return placed_; }
  void restore(const SearcherState& state, int placed);
  /// A plan of a state that was placed.
  Found restored(int search, const std::vector<double>& points, double predicted_s);

  int num_configs() const { return num_configs_; }
  void add_to(Search& statistics) const { searcher_.add_to(statistics); }

 private:
  OtherOrders(const SearchInput& input, WorkerPool& workers, std::vector<PipelineConfig> configs);
  /// Microbatches, order without run-ahead, dp, cp, gather_keys, tp.
  using Kind = std::tuple<int, plan::Order, int, int, int, int>;
  static Kind kind_of(int microbatches, plan::Order order, const plan::Stage& stage);
  static Kind kind_of(const plan::Plan& plan);
  static std::vector<PipelineConfig> configs_of(const SearchInput& input, const plan::Plan* like);

  const SearchInput& input_;
  WorkerPool& workers_;
  int num_configs_;
  Searcher searcher_;
  std::set<std::pair<Kind, int>> seen_;  ///< and run-ahead, of the plans that were returned
  int placed_ = 0;
};

}  // namespace brume::tuner
