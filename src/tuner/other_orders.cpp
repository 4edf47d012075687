#include "other_orders.hpp"

#include <algorithm>
#include <utility>

#include "grid.hpp"
#include "tuner/result.hpp"
#include "worker_pool.hpp"

namespace brume::tuner {
namespace {

constexpr double least_gain = 0.005;  ///< share of the fastest known plan's time
constexpr int most_placed = 12;       ///< plans
/// Share of memory that formulas may fill after a plan did not fit.
constexpr double refused_share = 0.97;

/// Copy without progress: its bounds do not hold for all plans.
SearchInput without_progress(SearchInput input) {
  input.progress = nullptr;
  return input;
}

}  // namespace

double fitting_share(const plan::Plan& plan, const analyzer::Prediction& prediction,
                     const hardware::Cluster& cluster) {
  double share = infinity;
  for (std::size_t i = 0; i < prediction.stages.size(); ++i) {
    const auto group = std::size_t(cluster.index(plan.stages[i].group));
    share = std::min(share, double(cluster.groups[group].memory_bytes) /
                                double(prediction.stages[i].peak_bytes()));
  }
  return share;
}

OtherOrders::OtherOrders(const SearchInput& input, WorkerPool& workers, const plan::Plan* like)
    : OtherOrders(input, workers, configs_of(input, like)) {}

OtherOrders::OtherOrders(const SearchInput& input, WorkerPool& workers,
                         std::vector<PipelineConfig> configs)
    : input_(input),
      workers_(workers),
      num_configs_(int(configs.size())),
      searcher_(without_progress(input), workers, std::move(configs)) {}

OtherOrders::Kind OtherOrders::kind_of(int microbatches, plan::Order order,
                                       const plan::Stage& stage) {
  order.run_ahead = 1;
  return {microbatches, order, stage.dp, stage.cp, stage.gather_keys, stage.tp};
}

OtherOrders::Kind OtherOrders::kind_of(const plan::Plan& plan) {
  return kind_of(plan.microbatches, plan.order, plan.stages[0]);
}

std::vector<PipelineConfig> OtherOrders::configs_of(const SearchInput& input,
                                                    const plan::Plan* like) {
  std::vector<PipelineConfig> configs =
      configs_in_other_orders(input.model, input.global_batch, input.cluster, input.keys);
  if (like)
    std::erase_if(configs, [&](const PipelineConfig& config) {
      const plan::Stage stage = stage_of(config.layouts[0], "");
      return kind_of(config.microbatches, config.order, stage) != kind_of(*like);
    });
  return configs;
}

double OtherOrders::worth_s(double known_s) { return known_s * (1.0 - least_gain); }

std::optional<Found> OtherOrders::next(double known_s) {
  while (placed_ < most_placed) {
    std::optional<Found> found = searcher_.next(worth_s(known_s));
    if (!found || found->candidate.predicted_s >= worth_s(known_s)) return std::nullopt;
    const std::pair one{kind_of(found->candidate.plan), found->candidate.plan.order.run_ahead};
    if (seen_.contains(one)) continue;
    // The analyzer goes through all passes, which the formulas that found the plan do not.
    const plan::Plan& plan = found->candidate.plan;
    const double fits =
        fitting_share(plan, workers_.grid().analyzer().analyze(plan), input_.cluster);
    if (fits < 1.0) {
      searcher_.take_less_memory(*found, fits);
      continue;
    }
    seen_.insert(one);
    ++placed_;
    return found;
  }
  return std::nullopt;
}

void OtherOrders::restore(const SearcherState& state, int placed) {
  searcher_.restore(state);
  placed_ = placed;
}

Found OtherOrders::restored(int search, const std::vector<double>& points, double predicted_s) {
  Found found = searcher_.restored(search, points, predicted_s);
  seen_.insert({kind_of(found.candidate.plan), found.candidate.plan.order.run_ahead});
  return found;
}

void OtherOrders::exclude(const Found& found) {
  seen_.erase({kind_of(found.candidate.plan), found.candidate.plan.order.run_ahead});
  searcher_.take_less_memory(found, refused_share);
}

}  // namespace brume::tuner
