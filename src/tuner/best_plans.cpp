#include "best_plans.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "climb.hpp"
#include "even_plans.hpp"
#include "grid.hpp"
#include "plan/adapted.hpp"
#include "tuner/progress.hpp"

namespace brume::tuner {
namespace {

/// Predictions are this near to simulations, mostly: plans predicted to be slower than the fastest
/// simulation by more are not simulated.
constexpr double prediction_error = 0.04;
/// The same where plans of as many stages and microbatches, run ahead as far, were simulated: their
/// predictions are off alike.
constexpr double shape_error = 0.005;
constexpr int most_even = 3;  ///< even plans that fit, before the search
/// Configurations from which on a search takes seconds until it finds a plan.
constexpr std::size_t many_configs = 1000;

}  // namespace

std::vector<RankedPlan> BestPlans::collect() {
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

void BestPlans::add_to(Search& statistics) const {
  if (like_even_plan_) like_even_plan_->add_to(statistics);
}

std::vector<Placed> BestPlans::simulated() const {
  std::vector<Placed> plans;
  for (const Simulated& one : simulated_) plans.push_back({one.found.candidate.plan, one.seconds});
  return plans;
}

double BestPlans::worth_s() const { return cutoff_s() * (1.0 + prediction_error); }

std::size_t BestPlans::num_own() const {
  return std::size_t(std::ranges::count(simulated_, false, &Simulated::given));
}

std::size_t BestPlans::search() {
  constexpr double share = 0.7;  // of the time, unless nothing is known by then
  search_end_s_ = budget_.seconds() + share * budget_.left_s();
  try {
    budget_.allow(search_end_s_ - budget_.seconds());
    if (!took_known_plans_) take_known_plans();
    while (const std::optional<Found> found = next()) {
      if (found->candidate.predicted_s > worth_s()) break;
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

void BestPlans::take_some(std::vector<Candidate> candidates, int most, bool given) {
  for (Candidate& candidate : candidates) {
    if (most == 0 || candidate.predicted_s > worth_s()) break;
    const Found found{std::move(candidate), std::nullopt};
    if (given ? is_known(found.candidate.plan) : repeats(found)) continue;
    if (take(found, nullptr, given)) --most;
  }
}

bool BestPlans::is_known(const plan::Plan& plan) const {
  return std::ranges::any_of(
      simulated_, [&](const Simulated& one) { return one.found.candidate.plan == plan; });
}

void BestPlans::take_known_plans() try {
  take_some(adapted_plans(), 1, true);
  if (!took_even_plans_ && searcher_.num_configs() >= many_configs) {
    take_some(even_plans(input_, workers_), most_even, false);
    take_like_fastest();
  }
  took_even_plans_ = took_known_plans_ = true;
} catch (const OutOfTime&) {
}

void BestPlans::take_like_fastest() {
  if (simulated_.empty()) return;
  const plan::Plan best =
      std::ranges::min_element(simulated_, {}, &Simulated::seconds)->found.candidate.plan;
  if (!best.order.is_1f1b()) take_from(like_even_plan_.emplace(input_, workers_, &best));
}

std::vector<Candidate> BestPlans::adapted_plans() {
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

std::vector<plan::Plan> BestPlans::starts_of_climb() {
  constexpr double near = 0.02;  // share by which plans of other pipeline sizes may be slower
  std::ranges::stable_sort(simulated_, {}, &Simulated::seconds);
  std::vector<plan::Plan> found;
  for (const Simulated& one : simulated_) {
    const plan::Plan& plan = one.found.candidate.plan;
    const bool any_size = one.seconds > fastest_s_ * (1.0 + near);
    const auto is_alike = [&](const plan::Plan& other) {
      return (other.order.chunks > 1) == (plan.order.chunks > 1) &&
             other.order.zero_bubble == plan.order.zero_bubble &&
             (any_size || other.pipeline_size() == plan.pipeline_size());
    };
    if (std::ranges::none_of(found, is_alike)) found.push_back(plan);
  }
  return found;
}

void BestPlans::climb_from_fastest() {
  constexpr double share = 0.4;  // of the time that is left
  const std::vector<plan::Plan> starts = starts_of_climb();
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

void BestPlans::take_from(OtherOrders& orders) {
  while (const std::optional<Found> found = orders.next(cutoff_s()))
    if (!repeats(*found, &orders)) take(*found, &orders);
}

std::optional<Found> BestPlans::next() {
  std::optional<Found> found = searcher_.next(known_s());
  if (found || !simulated_.empty() || searcher_.done(known_s())) return found;
  budget_.allow(budget_.left_s());
  return searcher_.next(known_s());
}

double BestPlans::fastest_1f1b_s() const {
  double fastest_s = infinity;
  for (const Simulated& one : simulated_)
    if (one.found.candidate.plan.order.is_1f1b()) fastest_s = std::min(fastest_s, one.seconds);
  return fastest_s;
}

bool BestPlans::repeats(const Found& found, OtherOrders* orders) {
  for (Simulated& other : simulated_)
    if (other.found.candidate.plan == found.candidate.plan) {
      if (!other.found.search) std::tie(other.found, other.orders) = std::tie(found, orders);
      if (std::exchange(other.given, false)) count(other);
      return true;
    }
  return false;
}

bool BestPlans::may_be_fastest(const Found& found) const {
  const auto known = least_over_predicted_.find(shape(found.candidate.plan));
  return known == least_over_predicted_.end() || num_own() < wanted_ ||
         found.candidate.predicted_s * known->second < cutoff_s() * (1.0 + shape_error);
}

void BestPlans::exclude(const Found& found, OtherOrders* orders, int stage) {
  ++statistics_.refused;
  if (!found.search) return refused_.push_back(found.candidate.plan);
  if (orders)
    orders->exclude(found);
  else
    searcher_.exclude(found, stage);
}

bool BestPlans::take(const Found& found, OtherOrders* orders, bool given) {
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

void BestPlans::keep(Simulated one) {
  constexpr double error = 0.01;  // the search finds plans that are predicted to be as fast
  if (one.given)
    given_s_ =
        std::min(given_s_, std::max(one.seconds, one.found.candidate.predicted_s) * (1.0 + error));
  else
    count(one);
  fastest_s_ = std::min(fastest_s_, one.seconds);
  simulated_.push_back(std::move(one));
  if (input_.progress) input_.progress->best_s = fastest_s_;
}

void BestPlans::count(const Simulated& one) {
  const Candidate& candidate = one.found.candidate;
  own_s_ = std::min(own_s_, one.seconds);
  if (candidate.plan.order.is_1f1b()) {
    double& least =
        least_over_predicted_.try_emplace(shape(candidate.plan), infinity).first->second;
    least = std::min(least, one.seconds / candidate.predicted_s);
  }
}

}  // namespace brume::tuner
