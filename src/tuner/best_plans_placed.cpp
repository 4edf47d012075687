/// @file The best plans of a search, placed and simulated in full.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "best_plans.hpp"
#include "grid.hpp"
#include "ranked.hpp"

namespace brume::tuner {
namespace {

/// Share by which a whole simulation may exceed that of the first microbatches: if it takes longer,
/// plans that were left out may be faster.
constexpr double first_part_error = 0.001;

}  // namespace

BestPlans::Outcome BestPlans::outcome(const Simulated& one, Grid& grid, bool in_full,
                                      const Deadline& deadline) const {
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

std::vector<RankedPlan> BestPlans::placed() {
  std::ranges::stable_sort(simulated_, {}, &Simulated::seconds);
  std::vector<Outcome> outcomes(std::min(wanted_, simulated_.size()));
  // The first one, whose simulation in full takes one core, runs with the others.
  workers_.each(outcomes.size(), [&](std::size_t i, Grid& grid) {
    outcomes[i] = outcome(simulated_[i], grid, i == 0, input_.deadline);
  });
  if (!outcomes[0].ranked && !outcomes[0].misfit)
    outcomes[0] = outcome(simulated_[0], workers_.grid(), false, Deadline());  // it is known to fit
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

double BestPlans::fastest_simulated_s(bool own) const {
  double fastest_s = infinity;
  for (const Simulated& one : simulated_)
    if (!own || !one.given) fastest_s = std::min(fastest_s, one.seconds);
  return fastest_s;
}

Placement BestPlans::sampled(const plan::Plan& plan, const Deadline& deadline) const {
  const bool until_it_fits = !plan.order.is_1f1b();
  return sample(plan, input_.model, input_.cluster, workers_.threads(), deadline, input_.packings,
                until_it_fits);
}

void BestPlans::confirm(const RankedPlan& best) {
  for (const Simulated& one : simulated_)
    if (one.found.search && !one.orders && one.found.candidate.plan == best.plan) {
      try {
        statistics_.confirmed = searcher_.confirms(one.found);
      } catch (const OutOfTime&) {
      }
      return;
    }
}

}  // namespace brume::tuner
