// No plan is simulated below the bound by what computing alone takes, and a plan that only computes
// comes near it.
#include "../../src/tuner/least_work.hpp"

#include <gtest/gtest.h>

#include "cluster_plans.hpp"
#include "price/price.hpp"
#include "schedule/steady.hpp"

namespace brume::tuner {
namespace {

/// The configuration that a plan lies in, with its stages' layouts only.
PipelineConfig config_of(const plan::Plan& plan) {
  PipelineConfig config{.num_stages = plan.num_stages(),
                        .microbatches = plan.microbatches,
                        .order = {.run_ahead = plan.order.run_ahead},
                        .layouts = {}};
  for (const plan::Stage& stage : plan.stages)
    config.layouts.push_back({.nodes = stage.nodes,
                              .devices_per_node = stage.devices_per_node,
                              .microbatch = stage.microbatch,
                              .dp = stage.dp,
                              .tp = stage.tp});
  return config;
}

TEST(LeastWork, NoPlanIsSimulatedFaster) {
  test::ClusterPlans samples(11);
  double nearest = 0.0;
  for (int i = 0; i < 60; ++i) {
    const test::ClusterPlan sample = samples.next(16);
    const double least_s = least_work_s({config_of(sample.plan)}, sample.model,
                                        sample.plan.global_batch, sample.cluster, sample.machine);
    const double simulated_s = schedule::steady_time(sample.plan, sample.model, sample.machine);
    EXPECT_GT(least_s, 0.0);
    EXPECT_LE(least_s, simulated_s) << sample.name() << "\n" << plan::text(sample.plan);
    nearest = std::max(nearest, least_s / simulated_s);
  }
  EXPECT_GT(nearest, 0.7);  // a bound of nothing would hold, too
}

// One device that stores all layers: only the update and the tasks' overhead come on top.
TEST(LeastWork, OneDeviceComesNear) {
  test::ClusterPlans samples(3);
  test::ClusterPlan sample = samples.next(16);
  sample.cluster.groups[0].nodes = sample.cluster.groups[0].devices_per_node = 1;
  plan::Stage stage;
  stage.layers = stage.stored_layers = sample.model.num_layers;
  stage.microbatch = 8;
  sample.plan = {.global_batch = 128, .microbatches = 16, .stages = {stage}};
  const double least_s =
      least_work_s({config_of(sample.plan)}, sample.model, 128, sample.cluster, sample.machine);
  const double simulated_s = schedule::steady_time(sample.plan, sample.model, sample.machine);
  EXPECT_LE(least_s, simulated_s);
  EXPECT_GT(least_s, 0.95 * simulated_s);
}

// Of several configurations the least counts, of several layouts the best for each part.
TEST(LeastWork, MoreChoicesBoundLess) {
  test::ClusterPlans samples(5);
  for (int i = 0; i < 10; ++i) {
    const test::ClusterPlan sample = samples.next(16);
    const auto bound_s = [&](const std::vector<PipelineConfig>& configs) {
      return least_work_s(configs, sample.model, sample.plan.global_batch, sample.cluster,
                          sample.machine);
    };
    const PipelineConfig one = config_of(sample.plan);
    PipelineConfig other = one;
    for (Layout& layout : other.layouts) layout.microbatch *= 2;
    PipelineConfig both = one;
    both.layouts.insert(both.layouts.end(), other.layouts.begin(), other.layouts.end());
    EXPECT_EQ(bound_s({one, other}), std::min(bound_s({one}), bound_s({other})));
    EXPECT_LE(bound_s({both}), bound_s({one, other}));
    EXPECT_EQ(bound_s({}), 0.0);
  }
}

}  // namespace
}  // namespace brume::tuner
