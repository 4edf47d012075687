/// @file The plans of a search: simulated as long as another one may be the fastest, then placed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "fastest_placed.hpp"
#include "other_orders.hpp"
#include "pipeline_search.hpp"
#include "placement.hpp"
#include "search.hpp"
#include "search_input.hpp"
#include "tuner/result.hpp"
#include "tuner/state.hpp"
#include "worker_pool.hpp"

namespace brume::tuner {

/// Simulates plans in rising order of prediction, coarsely, as long as another one may be the
/// fastest; then the best of them in full.
class BestPlans {
 public:
  BestPlans(const SearchInput& input, WorkerPool& workers, Searcher& searcher,
            OtherOrders& other_orders, Search& statistics, Budget& budget,
            const std::vector<plan::Plan>& starts)
      : input_(input),
        workers_(workers),
        searcher_(searcher),
        other_orders_(other_orders),
        statistics_(statistics),
        budget_(budget),
        wanted_(std::size_t(std::max(1, input.keys.simulate_top))),
        starts_(starts) {}

  /// Fastest simulation first.
  std::vector<RankedPlan> collect();

  /// Adds the work for plans that are cut as the best even plan is.
  void add_to(Search& statistics) const;

  /// State of the search so far.
  State state() const;

  /// Continues the search of a state. @throws Error(input) if it is not one of this search
  void restore(const State& state);

  /// All that were simulated and fit.
  std::vector<Placed> simulated() const;

 private:
  struct Simulated {
    Found found;
    OtherOrders* orders;  ///< none: the searcher of 1F1B found it
    double seconds;
    bool coarse;         ///< else predicted: it is too large to simulate
    bool given = false;  ///< adapted from a given plan; the search did not find it
    std::optional<RankedPlan> in_full = std::nullopt;
  };

  /// Plans of a state. @throws Error(input) if one cannot run here
  std::vector<plan::Plan> checked(const std::vector<plan::Plan>& plans) const;

  /// Time below which a plan is of interest.
  double known_s() const { return cutoff_s() * (1.0 - input_.keys.gap); }

  /// Time of the fastest plan that the search has found. Predictions of given plans bound a search
  /// until it has found one, but their simulations do not: a search that they ended would know
  /// fewer plans than a search alone.
  double cutoff_s() const { return own_s_ < infinity ? own_s_ : given_s_; }

  /// Predictions are mostly near simulations: time up to which a plan may turn out to be the
  /// fastest.
  double worth_s() const;

  /// Number of plans that the search has found.
  std::size_t num_own() const;

  /// Looks for plans until none can be faster than the fastest. @return how many there are
  std::size_t search();

  /// Takes plans that fit and may be the fastest, by rising prediction.
  void take_some(std::vector<Candidate> candidates, int most, bool given);

  bool is_known(const plan::Plan& plan) const;

  /// Some plans are known at once, however long the search takes, which continues if they run out
  /// of time.
  void take_known_plans();

  /// Takes plans that are cut as the fastest one is, if that is not of 1F1B.
  void take_like_fastest();

  /// Plans that are given for other jobs, as this one can run them; those that fit by prediction.
  std::vector<Candidate> adapted_plans();

  /// The fastest plan of each kind of order, and of each pipeline size near the fastest plan. The
  /// fastest one is first.
  std::vector<plan::Plan> starts_of_climb();

  /// Climbs from the fastest plans.
  void climb_from_fastest();

  void take_from(OtherOrders& orders);

  /// A plan counts once it has been placed, so the first one has to come while there is time.
  std::optional<Found> next();

  double fastest_1f1b_s() const;

  /// Whether a plan was simulated; an even one is from now on of the search that finds it, too.
  bool repeats(const Found& found, OtherOrders* orders = nullptr);

  using Shape = std::tuple<int, int, int>;
  static Shape shape(const plan::Plan& plan) {
    return {plan.num_stages(), plan.microbatches, plan.order.run_ahead};
  }

  /// Whether a plan may be the fastest, if it is predicted as well as others of its shape were. As
  /// long as people want more plans, any may.
  bool may_be_fastest(const Found& found) const;

  void exclude(const Found& found, OtherOrders* orders, int stage);

  /// @return whether it fits
  bool take(const Found& found, OtherOrders* orders = nullptr, bool given = false);

  void keep(Simulated one);

  /// Counts a plan that the search has found.
  void count(const Simulated& one);

  /// Result of placing a plan; neither: time ended.
  struct Outcome {
    std::optional<RankedPlan> ranked;
    std::optional<int> misfit;  ///< a stage
  };

  Outcome outcome(const Simulated& one, Grid& grid, bool in_full, const Deadline& deadline) const;

  /// The best of those simulated; the fastest is placed and simulated in full, and so is each next
  /// one that may then be faster. None if one does not fit after all, which is excluded, or if all
  /// take longer than the search took them to: it has to go on.
  std::vector<RankedPlan> placed();

  /// @param own  of plans that the search has found only
  double fastest_simulated_s(bool own = false) const;

  /// Many buffers, as of other orders, take long to place more tightly than the search did.
  Placement sampled(const plan::Plan& plan, const Deadline& deadline) const;

  void confirm(const RankedPlan& best);

  const SearchInput& input_;
  WorkerPool& workers_;
  Searcher& searcher_;
  OtherOrders& other_orders_;
  Search& statistics_;
  Budget& budget_;
  std::size_t wanted_;
  std::vector<Simulated> simulated_;
  std::map<Shape, double> least_over_predicted_;  ///< least ratio of simulation to prediction
  double fastest_s_ = infinity;                   ///< fastest of simulated_
  double own_s_ = infinity;                       ///< fastest of them that the search has found
  double given_s_ = infinity;  ///< time that the search can reach, by a given plan
  /// A plan of a search that is simulated now: it waits if time ends.
  std::optional<std::pair<Found, OtherOrders*>> taking_;
  const std::vector<plan::Plan>& starts_;
  bool took_known_plans_ = false;
  bool took_even_plans_ = false;
  std::vector<plan::Plan> refused_;            ///< plans of no search that do not fit
  std::vector<plan::Plan> climbed_;            ///< starts and end of the last climb
  std::optional<OtherOrders> like_even_plan_;  ///< cut as the best even plan is
  double search_end_s_ = 0.0;                  ///< end of the search, in the budget's seconds
};

}  // namespace brume::tuner
