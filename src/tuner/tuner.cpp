#include "tuner/tuner.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "base/error.hpp"
#include "base/parallel.hpp"
#include "base/units.hpp"
#include "climb.hpp"
#include "even_plans.hpp"
#include "grid.hpp"
#include "least_work.hpp"
#include "memory.hpp"
#include "minimal_memory.hpp"
#include "node_order.hpp"
#include "other_orders.hpp"
#include "placement.hpp"
#include "plan/adapted.hpp"
#include "schedule/simulate.hpp"
#include "search.hpp"
#include "state.hpp"
#include "why.hpp"

namespace brume::tuner {
namespace {

/// Predictions are this near to simulations, mostly: plans predicted to be slower than the fastest
/// simulation by more are not simulated.
constexpr double prediction_error = 0.04;
/// The same where plans of as many stages and microbatches, run ahead as far, were simulated: their
/// predictions are off alike.
constexpr double shape_error = 0.005;
constexpr int most_even = 3;  ///< even plans that fit, before the search
/// Share by which a whole simulation may exceed that of the first microbatches: if it takes longer,
/// plans that were left out may be faster.
constexpr double first_part_error = 0.001;
/// Configurations from which on a search takes seconds until it finds a plan.
constexpr std::size_t many_configs = 1000;

/// Sets the peaks of stages that placement finds off by more than 1 % and 1 MiB to what it takes.
/// @return the largest peak before that, where any was
std::optional<std::int64_t> take_placed_peaks(analyzer::Prediction& prediction,
                                              const Placement& placed) {
  const std::int64_t largest =
      std::ranges::max(prediction.stages, {}, &analyzer::StagePrediction::peak_bytes).peak_bytes();
  bool any = false;
  for (std::size_t i = 0; i < prediction.stages.size(); ++i) {
    analyzer::StagePrediction& stage = prediction.stages[i];
    const std::int64_t bytes = placed.stage_bytes[i % placed.stage_bytes.size()];
    const std::int64_t peak = stage.peak_bytes();
    if (std::abs(double(bytes - peak)) <= std::max(0.01 * double(bytes), bytes_per_mib)) continue;
    any = true;
    for (std::int64_t* one : {&stage.peak_forward_bytes, &stage.peak_backward_bytes})
      *one = *one == peak ? bytes : std::min(*one, bytes);
  }
  return any ? std::optional(largest) : std::nullopt;
}

/// Prediction of a plan on its nodes. Without slow pairs these are alike, and a grid has the
/// formulas, which take long to build.
analyzer::Prediction prediction(const SearchInput& input, Grid& grid, const plan::Plan& plan) {
  return input.machine.profile(0).slow_pairs.empty()
             ? grid.analyzer().analyze(plan)
             : analyzer::analyze(plan, input.model, input.machine);
}

/// A plan that was placed, with its prediction and, if there is time, its simulation.
RankedPlan ranked(const SearchInput& input, Grid& grid, const plan::Plan& plan,
                  const Placement& placed) {
  RankedPlan found{.plan = plan,
                   .prediction = prediction(input, grid, plan),
                   .simulated_s = std::nullopt,
                   .account = std::nullopt,
                   .placed = placed.groups,
                   .closed_form_bytes = std::nullopt};
  found.closed_form_bytes = take_placed_peaks(found.prediction, placed);
  if (placed.programs.empty()) return found;
  try {
    const schedule::Simulation simulation =
        schedule::simulate(placed.programs, plan, input.model, input.machine, input.deadline);
    found.simulated_s = simulation.iteration_s;
    found.account = schedule::account(plan, placed.programs, simulation);
  } catch (const OutOfTime&) {
  }
  return found;
}

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
  std::vector<RankedPlan> collect() {
    std::vector<RankedPlan> best;
    while (best.empty() && search() > 0) {
      climb_from_fastest();
      best = placed();
    }
    std::ranges::stable_sort(best, {}, &RankedPlan::seconds);
    if (best.empty()) return best;
    const double bound_s = std::min(searcher_.bound_s(), best[0].seconds());
    statistics_.gap = (best[0].seconds() - bound_s) / best[0].seconds();
    statistics_.cut_short =
        !searcher_.done(known_s()) || best.size() < std::min(wanted_, simulated_.size());
    if (!statistics_.cut_short) confirm(best[0]);
    return best;
  }

  /// Adds the work for plans that are cut as the best even plan is.
  void add_to(Search& statistics) const {
    if (like_even_plan_) like_even_plan_->add_to(statistics);
  }

  /// State of the search so far.
  State state() const {
    const double worth_s = cutoff_s() * (1.0 + prediction_error);
    State state{.searcher = searcher_.state(worth_s),
                .other_orders = other_orders_.state(worth_s),
                .placed = other_orders_.placed(),
                .even_plans = took_even_plans_,
                .simulated = {},
                .refused = refused_,
                .climbed = climbed_};
    if (taking_ && taking_->first.search &&
        (!taking_->second || taking_->second == &other_orders_)) {
      const auto& [found, orders] = *taking_;
      (orders ? state.other_orders : state.searcher)
          .waiting.push_back({int(*found.search), found.candidate.predicted_s,
                              numbers_of(found.candidate.stages)});
    }
    for (const Simulated& one : simulated_) {
      const Candidate& candidate = one.found.candidate;
      // Plans that are cut as the best even plan is come from a search of their own.
      const bool of_config = one.found.search && (!one.orders || one.orders == &other_orders_);
      state.simulated.push_back({candidate.plan, one.seconds, candidate.predicted_s, one.coarse,
                                 one.given, of_config && one.orders,
                                 of_config ? int(*one.found.search) : -1,
                                 of_config ? numbers_of(candidate.stages) : std::vector<double>()});
    }
    return state;
  }

  /// Continues the search of a state. @throws Error(input) if it is not one of this search
  void restore(const State& state) {
    searcher_.restore(state.searcher);
    other_orders_.restore(state.other_orders, state.placed);
    took_even_plans_ = state.even_plans;
    refused_ = checked(state.refused);
    climbed_ = checked(state.climbed);
    for (const State::Simulated& one : state.simulated) {
      Found found{{checked({one.plan})[0], {}, one.predicted_s}, std::nullopt};
      if (one.config >= 0)
        found = one.other_order ? other_orders_.restored(one.config, one.points, one.predicted_s)
                                : searcher_.restored(one.config, one.points, one.predicted_s);
      found.candidate.plan = one.plan;  // with its order of nodes
      keep({std::move(found), one.other_order ? &other_orders_ : nullptr, one.seconds, one.coarse,
            one.given});
    }
  }

  /// All that were simulated and fit.
  std::vector<Placed> simulated() const {
    std::vector<Placed> plans;
    for (const Simulated& one : simulated_)
      plans.push_back({one.found.candidate.plan, one.seconds});
    return plans;
  }

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
  std::vector<plan::Plan> checked(const std::vector<plan::Plan>& plans) const {
    for (const plan::Plan& plan : plans)
      plan::check(plan::parse(plan::text(plan), "a plan of the search's state"), input_.model,
                  input_.cluster);
    return plans;
  }

  /// Time below which a plan is of interest.
  double known_s() const { return cutoff_s() * (1.0 - input_.keys.gap); }

  /// Time of the fastest plan that the search has found. Predictions of given plans bound a search
  /// until it has found one, but their simulations do not: a search that they ended would know
  /// fewer plans than a search alone.
  double cutoff_s() const { return own_s_ < infinity ? own_s_ : given_s_; }

  /// Number of plans that the search has found.
  std::size_t num_own() const {
    return std::size_t(std::ranges::count(simulated_, false, &Simulated::given));
  }

  /// Looks for plans until none can be faster than the fastest. @return how many there are
  std::size_t search() {
    constexpr double share = 0.7;  // of the time, unless nothing is known by then
    search_end_s_ = budget_.seconds() + share * budget_.left_s();
    try {
      budget_.allow(search_end_s_ - budget_.seconds());
      if (!took_known_plans_) take_known_plans();
      while (const std::optional<Found> found = next()) {
        if (found->candidate.predicted_s > cutoff_s() * (1.0 + prediction_error)) break;
        if (!repeats(*found) && may_be_fastest(*found)) take(*found);
      }
      if (!simulated_.empty()) take_from(other_orders_);
      // The next best, for people.
      while (num_own() < wanted_)
        if (const std::optional<Found> found = searcher_.next(infinity); !found)
          break;
        else if (!repeats(*found))
          take(*found);
    } catch (const OutOfTime&) {
    }
    budget_.allow(budget_.left_s());
    return simulated_.size();
  }

  /// Takes plans that fit and may be the fastest, by rising prediction.
  void take_some(std::vector<Candidate> candidates, int most, bool given) {
    for (Candidate& candidate : candidates) {
      if (most == 0 || candidate.predicted_s > cutoff_s() * (1.0 + prediction_error)) break;
      const Found found{std::move(candidate), std::nullopt};
      if (given ? is_known(found.candidate.plan) : repeats(found)) continue;
      if (take(found, nullptr, given)) --most;
    }
  }

  bool is_known(const plan::Plan& plan) const {
    return std::ranges::any_of(
        simulated_, [&](const Simulated& one) { return one.found.candidate.plan == plan; });
  }

  /// Some plans are known at once, however long the search takes, which continues if they run out
  /// of time.
  void take_known_plans() try {
    take_some(adapted_plans(), 1, true);
    if (!took_even_plans_ && searcher_.num_configs() >= many_configs) {
      take_some(even_plans(input_, workers_), most_even, false);
      take_like_fastest();
    }
    took_even_plans_ = took_known_plans_ = true;
  } catch (const OutOfTime&) {
  }

  /// Takes plans that are cut as the fastest one is, if that is not of 1F1B.
  void take_like_fastest() {
    if (simulated_.empty()) return;
    const plan::Plan best =
        std::ranges::min_element(simulated_, {}, &Simulated::seconds)->found.candidate.plan;
    if (!best.order.is_1f1b()) take_from(like_even_plan_.emplace(input_, workers_, &best));
  }

  /// Plans that are given for other jobs, as this one can run them; those that fit by prediction.
  std::vector<Candidate> adapted_plans() {
    std::vector<plan::Plan> all;
    for (const plan::Plan& start : starts_)
      for (plan::Plan& plan :
           plan::adapted(start, input_.model, input_.global_batch, input_.cluster, input_.keys))
        all.push_back(input_.conform ? input_.conform(std::move(plan)) : std::move(plan));
    std::vector<std::optional<Candidate>> predicted(all.size());
    workers_.each(all.size(), [&](std::size_t i, Grid& grid) {
      input_.deadline.check();
      const analyzer::Prediction prediction = grid.analyzer().analyze(all[i]);
      if (fitting_share(all[i], prediction, input_.cluster) >= 1.0)
        predicted[i] = {std::move(all[i]), {}, prediction.iteration_s};
    });
    std::vector<Candidate> found;
    for (std::optional<Candidate>& one : predicted)
      if (one) found.push_back(*std::move(one));
    std::ranges::stable_sort(found, {}, &Candidate::predicted_s);
    statistics_.adapted = int(found.size());
    return found;
  }

  /// The fastest plan of each kind of order, the fastest first.
  std::vector<plan::Plan> fastest_of_orders() {
    std::ranges::stable_sort(simulated_, {}, &Simulated::seconds);
    std::vector<plan::Plan> found;
    const auto kind = [](const plan::Plan& plan) {
      return std::pair(plan.order.chunks > 1, plan.order.zero_bubble);
    };
    for (const Simulated& one : simulated_)
      if (const plan::Plan& plan = one.found.candidate.plan;
          std::ranges::find(found, kind(plan), kind) == found.end())
        found.push_back(plan);
    return found;
  }

  /// Climbs from the fastest plans.
  void climb_from_fastest() {
    constexpr double share = 0.4;  // of the time that is left
    const std::vector<plan::Plan> starts = fastest_of_orders();
    const auto has_climbed = [&](const plan::Plan& plan) {
      return std::ranges::find(climbed_, plan) != climbed_.end();
    };
    if (std::ranges::all_of(starts, has_climbed)) return;
    budget_.allow(share * budget_.left_s());
    Climb found = climb(input_, workers_, starts, refused_);
    const bool done = input_.deadline.left_s() > 0.0;
    statistics_.simulated += found.simulated;
    budget_.allow(budget_.left_s());
    if (!(found.plan == starts[0])) try {
        const double predicted_s = workers_.grid().predicted_s(found.plan);
        take({{found.plan, {}, predicted_s}, std::nullopt});
      } catch (const OutOfTime&) {
        return;
      }
    if (!done) return;
    climbed_ = starts;
    climbed_.push_back(std::move(found.plan));
  }

  void take_from(OtherOrders& orders) {
    while (const std::optional<Found> found = orders.next(cutoff_s()))
      if (!repeats(*found, &orders)) take(*found, &orders);
  }

  /// A plan counts once it has been placed, so the first one has to come while there is time.
  std::optional<Found> next() {
    std::optional<Found> found = searcher_.next(known_s());
    if (found || !simulated_.empty() || searcher_.done(known_s())) return found;
    budget_.allow(budget_.left_s());
    return searcher_.next(known_s());
  }

  double fastest_1f1b_s() const {
    double fastest_s = infinity;
    for (const Simulated& one : simulated_)
      if (one.found.candidate.plan.order.is_1f1b()) fastest_s = std::min(fastest_s, one.seconds);
    return fastest_s;
  }

  /// Whether a plan was simulated; an even one is from now on of the search that finds it, too.
  bool repeats(const Found& found, OtherOrders* orders = nullptr) {
    for (Simulated& other : simulated_)
      if (other.found.candidate.plan == found.candidate.plan) {
        if (!other.found.search) std::tie(other.found, other.orders) = std::tie(found, orders);
        if (std::exchange(other.given, false)) count(other);
        return true;
      }
    return false;
  }

  using Shape = std::tuple<int, int, int>;
  static Shape shape(const plan::Plan& plan) {
    return {plan.num_stages(), plan.microbatches, plan.order.run_ahead};
  }

  /// Whether a plan may be the fastest, if it is predicted as well as others of its shape were. As
  /// long as people want more plans, any may.
  bool may_be_fastest(const Found& found) const {
    const auto known = least_over_predicted_.find(shape(found.candidate.plan));
    return known == least_over_predicted_.end() || num_own() < wanted_ ||
           found.candidate.predicted_s * known->second < cutoff_s() * (1.0 + shape_error);
  }

  void exclude(const Found& found, OtherOrders* orders, int stage) {
    ++statistics_.refused;
    if (!found.search) return refused_.push_back(found.candidate.plan);
    if (orders)
      orders->exclude(found);
    else
      searcher_.exclude(found, stage);
  }

  /// @return whether it fits
  bool take(const Found& found, OtherOrders* orders = nullptr, bool given = false) {
    const bool first = simulated_.empty();
    if (first) budget_.grant(budget_.left_s() + placing_s);
    taking_ = {found, orders};
    const Coarse coarse = coarsely(input_, found.candidate.plan, workers_.threads());
    taking_.reset();
    if (first) budget_.allow(search_end_s_ - budget_.seconds());
    if (coarse.misfit) {
      exclude(found, orders, *coarse.misfit);
      return false;
    }
    ++statistics_.simulated;
    const double seconds = coarse.iteration_s.value_or(found.candidate.predicted_s);
    const bool is_1f1b = found.candidate.plan.order.is_1f1b();
    if (is_1f1b || seconds < OtherOrders::worth_s(fastest_1f1b_s()))
      keep({found, orders, seconds, coarse.iteration_s.has_value(), given});
    return true;
  }

  void keep(Simulated one) {
    constexpr double error = 0.01;  // the search finds plans that are predicted to be as fast
    if (one.given)
      given_s_ = std::min(given_s_,
                          std::max(one.seconds, one.found.candidate.predicted_s) * (1.0 + error));
    else
      count(one);
    fastest_s_ = std::min(fastest_s_, one.seconds);
    simulated_.push_back(std::move(one));
    if (input_.progress) input_.progress->best_s = fastest_s_;
  }

  /// Counts a plan that the search has found.
  void count(const Simulated& one) {
    const Candidate& candidate = one.found.candidate;
    own_s_ = std::min(own_s_, one.seconds);
    if (candidate.plan.order.is_1f1b()) {
      double& least =
          least_over_predicted_.try_emplace(shape(candidate.plan), infinity).first->second;
      least = std::min(least, one.seconds / candidate.predicted_s);
    }
  }

  /// Result of placing a plan; neither: time ended.
  struct Outcome {
    std::optional<RankedPlan> ranked;
    std::optional<int> misfit;  ///< a stage
  };

  Outcome outcome(const Simulated& one, Grid& grid, bool in_full, const Deadline& deadline) const {
    const plan::Plan& plan = one.found.candidate.plan;
    if (one.in_full) return {one.in_full, std::nullopt};
    try {
      const Placement placement =
          in_full ? place(plan, input_.model, input_.cluster, workers_.threads(), deadline)
                  : sampled(plan, deadline);
      if (placement.misfit) return {std::nullopt, placement.misfit};
      Outcome found{ranked(input_, grid, plan, placement), std::nullopt};
      if (!found.ranked->simulated_s && one.coarse) found.ranked->simulated_s = one.seconds;
      return found;
    } catch (const OutOfTime&) {
      return {};
    }
  }

  /// The best of those simulated; the fastest is placed and simulated in full, and so is each next
  /// one that may then be faster. None if one does not fit after all, which is excluded, or if all
  /// take longer than the search took them to: it has to go on.
  std::vector<RankedPlan> placed() {
    std::ranges::stable_sort(simulated_, {}, &Simulated::seconds);
    std::vector<Outcome> outcomes(std::min(wanted_, simulated_.size()));
    // The first one, whose simulation in full takes one core, runs with the others.
    workers_.each(outcomes.size(), [&](std::size_t i, Grid& grid) {
      outcomes[i] = outcome(simulated_[i], grid, i == 0, input_.deadline);
    });
    if (!outcomes[0].ranked && !outcomes[0].misfit)
      outcomes[0] =
          outcome(simulated_[0], workers_.grid(), false, Deadline());  // it is known to fit
    std::vector<RankedPlan> best;
    double fastest_in_full_s = infinity;
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
      const bool in_full = i == 0 || simulated_[i].seconds < fastest_in_full_s;
      if (in_full && i > 0)
        outcomes[i] = outcome(simulated_[i], workers_.grid(), true, input_.deadline);
      if (outcomes[i].misfit) {
        exclude(simulated_[i].found, simulated_[i].orders, *outcomes[i].misfit);
        simulated_.erase(simulated_.begin() + std::ptrdiff_t(i));
        fastest_s_ = fastest_simulated_s();
        own_s_ = fastest_simulated_s(true);
        return {};
      }
      if (!outcomes[i].ranked) break;
      best.push_back(*std::move(outcomes[i].ranked));
      if (!in_full) continue;
      fastest_in_full_s = std::min(fastest_in_full_s, best.back().seconds());
      simulated_[i].seconds = best.back().seconds();
      simulated_[i].in_full = best.back();
    }
    const double before_s = std::exchange(fastest_s_, fastest_simulated_s());
    own_s_ = fastest_simulated_s(true);
    if (fastest_s_ > before_s * (1.0 + first_part_error)) return {};
    return best;
  }

  /// @param own  of plans that the search has found only
  double fastest_simulated_s(bool own = false) const {
    double fastest_s = infinity;
    for (const Simulated& one : simulated_)
      if (!own || !one.given) fastest_s = std::min(fastest_s, one.seconds);
    return fastest_s;
  }

  /// Many buffers, as of other orders, take long to place more tightly than the search did.
  Placement sampled(const plan::Plan& plan, const Deadline& deadline) const {
    const bool until_it_fits = !plan.order.is_1f1b();
    return sample(plan, input_.model, input_.cluster, workers_.threads(), deadline, input_.packings,
                  until_it_fits);
  }

  void confirm(const RankedPlan& best) {
    for (const Simulated& one : simulated_)
      if (one.found.search && !one.orders && one.found.candidate.plan == best.plan) {
        try {
          statistics_.confirmed = searcher_.confirms(one.found);
        } catch (const OutOfTime&) {
        }
        return;
      }
  }

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

/// A search without a knob looks at fewer plans, and may so come upon one that is faster than the
/// best of all: that takes its place. @return its seconds; infinity where it does not fit
double take_if_faster(const SearchInput& input, WorkerPool& workers, const plan::Plan& plan,
                      Result& result) {
  const Placement placement =
      place(plan, input.model, input.cluster, workers.threads(), input.deadline);
  if (placement.misfit) return infinity;
  RankedPlan found = ranked(input, workers.grid(), plan, placement);
  const double before_s = result.best[0].seconds();
  const double found_s = found.seconds();
  if (found_s >= before_s) return found_s;
  result.search.gap = std::max(0.0, 1.0 - before_s * (1.0 - result.search.gap) / found_s);
  const std::size_t wanted = result.best.size();
  std::erase_if(result.best, [&](const RankedPlan& other) { return other.plan == plan; });
  result.best.insert(result.best.begin(), std::move(found));
  if (result.best.size() > wanted) result.best.pop_back();
  // It does without that knob.
  std::erase_if(result.ablations, [&](const Ablation& without) {
    return without.iteration_s && *without.iteration_s <= result.best[0].seconds();
  });
  return found_s;
}

/// Adds the time of the best plan with the cluster's order of nodes, if the plan has its own order.
void add_node_order(const SearchInput& input, WorkerPool& workers, Result& result) {
  plan::Plan plan = result.best[0].plan;
  if (plan.node_order.empty()) return;
  plan.node_order.clear();
  const double without_s = take_if_faster(input, workers, plan, result);
  if (without_s > result.best[0].seconds())
    result.ablations.push_back({"an order of nodes", without_s});
}

void add_reasons(const SearchInput& input, WorkerPool& workers, Budget& budget,
                 const Bounds& bounds, std::vector<Placed> known, Result& result) {
  Reasons found = reasons(input, workers, budget, result.best[0], bounds, std::move(known));
  result.ablations = std::move(found.ablations);
  result.untried = std::move(found.untried);
  try {
    if (found.faster) take_if_faster(input, workers, *found.faster, result);
    add_node_order(input, workers, result);
    result.nearest_infeasible = nearest_infeasible(input, workers, result.best[0].seconds());
    result.faster = faster_beside(input, workers, result.best[0].seconds());
  } catch (const OutOfTime&) {
  }
}

}  // namespace

Result tune(const model::Config& model, int global_batch, const hardware::Cluster& cluster,
            const hardware::Machine& machine, const deck::SearchKeys& search,
            const Options& options) {
  plan::check_model(model, cluster);
  Memory own;
  Memory::Known& known =
      (options.memory ? *options.memory : own)
          .of(model, machine, cluster, options.threads > 0 ? options.threads : num_cores());
  Budget& budget = known.budget = Budget(search.time_limit_s, options.stop);
  WorkerPool& workers = known.workers;
  const std::int64_t evaluations_before = workers.evaluations();
  StateKeeper keeper(options.keep, options.keep_every_s);
  SearchInput input{.model = model,
                    .global_batch = global_batch,
                    .cluster = cluster,
                    .machine = machine,
                    .keys = search,
                    .most_labels = options.most_labels,
                    .deadline = budget.deadline(),
                    .rows = &known.rows,
                    .packings = &known.packings,
                    .progress = options.progress,
                    .keeper = &keeper,
                    .conform = options.conform};
  Searcher searcher(input, workers, configs(input));
  OtherOrders other_orders(input, workers);
  Result result;
  result.search.limit_s = search.time_limit_s;
  BestPlans plans(input, workers, searcher, other_orders, result.search, budget, options.starts);
  if (options.state) plans.restore(*options.state);
  keeper.collect_by([&] { return plans.state(); });
  const bool may_fit = tuner::may_fit(input, workers.grid());
  if (may_fit) result.best = plans.collect();
  keeper.keep();
  input.progress = nullptr;  // what follows are other searches
  input.keeper = nullptr;
  budget.allow(budget.left_s());
  if (result.best.empty()) {
    if (may_fit && !searcher.done(infinity)) nothing_found(input, searcher, result.search.refused);
    const auto [plan, placed] = smallest_that_fits(input, workers);
    result.best.push_back(ranked(input, workers.grid(), plan, placed));
    result.search.gap = 1.0;
  }

  searcher.add_to(result.search);
  other_orders.add_to(result.search);
  plans.add_to(result.search);
  result.search.evaluations -= evaluations_before;
  result.search.other_orders = other_orders.num_configs();
  const std::vector<PipelineConfig> all = configs(input);
  result.search.least_work_s = least_work_s(all, model, global_batch, cluster, machine);
  // With one stage the formulas know which first blocks are frozen, but not other unlike layers.
  const auto one_stage = [](const PipelineConfig& config) { return config.num_stages == 1; };
  result.search.bounds_all = model.has_all_backwards() ? model::are_layers_alike(model)
                                                       : model.frozen_parameters.empty() &&
                                                             std::ranges::all_of(all, one_stage);
  const double gap = 1.0 - result.search.least_work_s / result.best[0].seconds();
  result.search.gap = result.search.bounds_all ? std::min(result.search.gap, gap) : gap;
  if (options.reasons)
    add_reasons(input, workers, budget, searcher.bounds(), plans.simulated(), result);
  result.search.interrupted = budget.stopped();
  result.search.seconds = budget.seconds();
  return result;
}

}  // namespace brume::tuner
