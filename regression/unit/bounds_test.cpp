// The objective of the inter-stage problem beside the analyzer's prediction of the same assignment,
// on machines of several nodes.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "../../src/tuner/grid.hpp"
#include "../../src/tuner/other_orders.hpp"
#include "../../src/tuner/pipeline.hpp"
#include "../../src/tuner/rows.hpp"
#include "planning_samples.hpp"
#include "trials.hpp"

namespace brume::tuner {
namespace {

/// Transfers between nodes take up to twenty times as long as within one.
hardware::Profile random_profile(std::mt19937& random, int ranks_per_node) {
  hardware::Profile profile = samples::round_profile(ranks_per_node);
  const double speed = samples::pick<double>(random, {1, 10, 100});
  profile.flops_per_s *= speed;
  profile.bytes_per_s *= speed;
  const double slower = samples::pick<double>(random, {1, 4, 20});
  std::vector<hardware::LinkRow> between = profile.links;
  for (hardware::LinkRow& row : between) {
    row.nodes = 2;
    row.time_s *= slower;
  }
  profile.links.insert(profile.links.end(), between.begin(), between.end());
  return profile;
}

/// Any strategy that axes allow.
Point random_point(std::mt19937& random, const Axes& axes, const StagePosition& position,
                   int layers) {
  Strategy strategy{.layers = layers};
  const auto [least, most] = axes.levels(layers);
  strategy.level = least + int(random() % unsigned(most - least + 1));
  strategy.sharding = samples::pick(random, axes.shardings(position.mesh()));
  for (std::size_t i = 0; i < strategy.ratios.size(); ++i)
    if (!plan::shares[i].whole) strategy.ratios[i] = samples::pick(random, axes.ratios[i]);
  return {position.layout, strategy};
}

/// An assignment for a configuration, whose layers and devices add up; none where a few attempts
/// find none.
std::vector<Point> random_assignment(std::mt19937& random, const SearchInput& input,
                                     const Axes& axes, const PipelineConfig& config, Grid& grid) {
  for (int attempt = 0; attempt < 50; ++attempt) {
    std::vector<Point> stages;
    int devices = 0, layers = input.model.num_layers;
    for (int after = config.num_stages - 1; after >= 0; --after) {
      int others = 0;
      for (int behind = 0; behind < after; ++behind) others += config.least_layers(behind);
      const int most = layers - others, least = config.least_layers(after);
      const int own = after == 0 ? layers : least + int(random() % unsigned(most - least + 1));
      const StagePosition position{config, int(random() % unsigned(config.layouts.size())), after};
      if (!may_begin(devices, position.mesh().devices(), input.cluster.groups[0].devices_per_node))
        break;
      devices += position.mesh().devices();
      layers -= own;
      stages.push_back(random_point(random, axes, position, own));
      grid.price_time(position, std::span(&stages.back(), 1));
    }
    if (int(stages.size()) == config.num_stages && devices == input.cluster.devices())
      return stages;
  }
  return {};
}

/// Bounds above the prediction, as shares of it, of one random assignment a configuration.
struct Excess {
  std::vector<double> of_1f1b, of_two_parts, of_chunks;
};

Excess excesses(int trials) {
  std::mt19937 random(17);
  Excess found;
  for (int trial = 0; trial < trials; ++trial) {
    const model::Config model =
        samples::small_model(samples::pick<int>(random, {4, 6, 8}), random() % 2 == 0);
    const int per_node = samples::pick<int>(random, {1, 2, 4});
    const hardware::Machine machine(random_profile(random, per_node));
    const hardware::Cluster cluster =
        hardware::NodeGroup{.nodes = samples::pick<int>(random, {2, 4}),
                            .devices_per_node = per_node,
                            .memory_bytes = std::int64_t{1} << 40,
                            .host_memory_bytes = std::int64_t{1} << 40};
    deck::SearchKeys keys;
    keys.microbatch = {1, 2};
    keys.unequal_stages = random() % 2 == 0;
    const Deadline never;
    AllRows rows(cluster);
    const SearchInput input{model, 16, cluster, machine, keys, 64, never, &rows};
    const Axes axes(keys), split_axes = axes.of_split_backwards();
    Grid grid(model, machine, never);
    std::vector<PipelineConfig> all = configs(input);
    const std::vector<PipelineConfig> others = configs_in_other_orders(model, 16, cluster, keys);
    all.insert(all.end(), others.begin(), others.end());
    for (const PipelineConfig& config : all) {
      if (config.num_stages == 1) continue;
      const std::vector<Point> stages = random_assignment(
          random, input, config.order.zero_bubble ? split_axes : axes, config, grid);
      if (stages.empty()) continue;
      const MessageTable messages(grid, config, cluster);
      const Pipeline pipeline{.config = config,
                              .messages = messages,
                              .num_layers = model.num_layers,
                              .cluster = cluster,
                              .deadline = never,
                              .cells = {}};
      const double predicted_s = grid.predicted_s(plan_of(input, config, stages));
      (config.order.is_1f1b()     ? found.of_1f1b
       : config.order.zero_bubble ? found.of_two_parts
                                  : found.of_chunks)
          .push_back(least_s(pipeline, stages) / predicted_s - 1.0);
    }
  }
  return found;
}

// Of 10,000 random assignments seven have a bound above their prediction, by 0.11 % at most.
TEST(Bounds, HardlyAnyIsAboveThePrediction) {
  const Excess found = excesses(test::trials(40));
  EXPECT_GT(found.of_1f1b.size(), 500u);
  const auto share_above = [](const std::vector<double>& excesses, double least) {
    return double(std::ranges::count_if(excesses, [&](double e) { return e > least; })) /
           double(excesses.size());
  };
  EXPECT_LE(share_above(found.of_1f1b, 1e-9), 0.001);
  EXPECT_LE(std::ranges::max(found.of_1f1b), 0.002);
  // Of other orders nothing is proven, but a bound far above hides a plan. Chunks of one layer may
  // wait less for transfers than the formula of all their layers says.
  EXPECT_GT(found.of_two_parts.size(), 100u);
  EXPECT_LE(std::ranges::max(found.of_two_parts), 0.02);
  EXPECT_GT(found.of_chunks.size(), 300u);
  EXPECT_LE(share_above(found.of_chunks, 0.02), 0.1);
}

}  // namespace
}  // namespace brume::tuner
