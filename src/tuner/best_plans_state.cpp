/// @file State of the plans of a search.
#include <optional>
#include <utility>
#include <vector>

#include "best_plans.hpp"
#include "plan/plan.hpp"
#include "state.hpp"

namespace brume::tuner {

State BestPlans::state() const {
  const double worth = worth_s();
  State state{.searcher = searcher_.state(worth),
              .other_orders = other_orders_.state(worth),
              .placed = other_orders_.placed(),
              .even_plans = took_even_plans_,
              .simulated = {},
              .refused = refused_,
              .climbed = climbed_};
  if (taking_ && taking_->first.search && (!taking_->second || taking_->second == &other_orders_)) {
    const auto& [found, orders] = *taking_;
    (orders ? state.other_orders : state.searcher)
        .waiting.push_back(
            {int(*found.search), found.candidate.predicted_s, numbers_of(found.candidate.stages)});
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

void BestPlans::restore(const State& state) {
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

std::vector<plan::Plan> BestPlans::checked(const std::vector<plan::Plan>& plans) const {
  for (const plan::Plan& plan : plans)
    plan::check(plan::parse(plan::text(plan), "a plan of the search's state"), input_.model,
                input_.cluster);
  return plans;
}

}  // namespace brume::tuner
