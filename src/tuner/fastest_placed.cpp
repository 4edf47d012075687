#include "fastest_placed.hpp"

#include <utility>
#include <vector>

#include "minimal_memory.hpp"
#include "other_orders.hpp"
#include "placement.hpp"
#include "worker_pool.hpp"

namespace brume::tuner {
namespace {

/// Places a plan. @return the stage that does not fit
std::optional<int> keep_if_faster(const SearchInput& input, WorkerPool& workers, const Found& found,
                                  Placed& fastest) {
  const Coarse coarse = coarsely(input, found.candidate.plan, workers.threads());
  const double iteration_s = coarse.iteration_s.value_or(found.candidate.predicted_s);
  if (!coarse.misfit && iteration_s < fastest.iteration_s)
    fastest = {found.candidate.plan, iteration_s};
  return coarse.misfit;
}

}  // namespace

void look_at_other_orders(const SearchInput& input, WorkerPool& workers, const Doubt& doubt,
                          const plan::Plan* like, Placed& fastest) {
  OtherOrders others(input, workers, like);
  while (const std::optional<Found> found = others.next(doubt.worth_knowing_s(fastest.iteration_s)))
    if (keep_if_faster(input, workers, *found, fastest)) others.exclude(*found);
}

std::optional<Placed> fastest_placed(const SearchInput& input, WorkerPool& workers,
                                     const Doubt& doubt, const Bounds& bounds, Placed fastest,
                                     const plan::Plan* like) {
  if (fastest.iteration_s == infinity && !may_fit(input, workers.grid())) return std::nullopt;
  Searcher searcher(input, workers, configs(input), bounds);
  std::vector<Found> promising;  // predicted to be faster, the fastest last; not placed yet
  const auto worth_knowing_s = [&] {
    return doubt.worth_knowing_s(promising.empty() ? fastest.iteration_s
                                                   : promising.back().candidate.predicted_s);
  };
  // They are few, and the faster the plan that they find, the fewer of 1F1B matter.
  if (like && !like->order.is_1f1b()) look_at_other_orders(input, workers, doubt, like, fastest);
  // Placing a plan takes as long as several steps of the search, so only the last ones are.
  while (true) {
    std::optional<Found> found = searcher.next(worth_knowing_s());
    if (found && found->candidate.predicted_s < worth_knowing_s()) {
      promising.push_back(*std::move(found));
      continue;
    }
    if (promising.empty()) break;
    const Found last = std::move(promising.back());
    promising.pop_back();
    if (const std::optional<int> misfit = keep_if_faster(input, workers, last, fastest))
      searcher.exclude(last, *misfit);
    else
      promising.clear();
  }
  if (fastest.iteration_s < infinity) return fastest;
  if (!searcher.done(infinity)) throw OutOfTime();
  return std::nullopt;
}

}  // namespace brume::tuner
