#include "tuner/tuner.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/parallel.hpp"
#include "best_plans.hpp"
#include "cache.hpp"
#include "least_work.hpp"
#include "minimal_memory.hpp"
#include "ranked.hpp"
#include "state.hpp"
#include "why.hpp"

namespace brume::tuner {
namespace {

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
  Cache own;
  Cache::Known& known =
      (options.cache ? *options.cache : own)
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
  if (options.state) try {
      plans.restore(*options.state);
    } catch (const Error& error) {
      if (error.failure() != Failure::input) throw;
      throw Error(error.failure(), "{}: {}", options.state_name, error.what());
    }
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
