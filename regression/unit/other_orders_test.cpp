// Plans of several chunks a stage, and of backwards in two parts, that the search finds.
#include "../../src/tuner/other_orders.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "plan/order.hpp"
#include "planning_samples.hpp"
#include "schedule/steady.hpp"
#include "tuner/tuner.hpp"

namespace brume::tuner {
namespace {

hardware::Cluster of_devices(int devices, std::int64_t memory_bytes = std::int64_t{1} << 40) {
  return hardware::NodeGroup{.nodes = 1,
                             .devices_per_node = devices,
                             .memory_bytes = memory_bytes,
                             .host_memory_bytes = std::int64_t{1} << 40};
}

/// One device a stage, and nothing that a device could save.
deck::SearchKeys pipelines(int num_stages) {
  deck::SearchKeys keys;
  keys.stages = {num_stages};
  keys.microbatch = {1};
  keys.tp = keys.dp = {1};
  keys.weight_offload = keys.grad_offload = keys.optim_offload = keys.act_offload = {0.0};
  return keys;
}

/// Computing takes nearly all time.
hardware::Profile slow_kernels(int devices) {
  hardware::Profile profile = samples::round_profile(devices);
  profile.flops_per_s /= 10.0;
  return profile;
}

TEST(OtherOrders, FramesFollowTheLists) {
  const model::Config model = samples::small_model(8);
  deck::SearchKeys keys = pipelines(4);
  const auto found = [&](const hardware::Cluster& cluster, const model::Config& of) {
    std::multiset<int> all;  // chunks; 0: backwards in two parts
    for (const PipelineConfig& config : configs_in_other_orders(of, 8, cluster, keys)) {
      EXPECT_EQ(config.layouts.size(), 1u);
      EXPECT_FALSE(config.order.is_1f1b());
      all.insert(config.order.zero_bubble ? 0 : config.order.chunks);
    }
    return all;
  };
  const hardware::Cluster four = of_devices(4);
  EXPECT_EQ(found(four, model), (std::multiset<int>{0, 0, 2, 2}));  // with each run-ahead
  keys.run_ahead = {2};
  EXPECT_EQ(found(four, model), (std::multiset<int>{0, 2}));
  keys = pipelines(4);
  keys.whole_rounds = true;
  keys.zero_bubble = false;
  keys.run_ahead = {1};
  const std::vector<PipelineConfig> ahead = configs_in_other_orders(model, 8, four, keys);
  ASSERT_EQ(ahead.size(), 1u);
  EXPECT_EQ(ahead[0].order.run_ahead, 2);
  EXPECT_TRUE(configs_in_other_orders(model, 9, four, keys).empty());
  keys = pipelines(2);
  keys.chunks = {1, 4};
  keys.run_ahead = {1};
  EXPECT_EQ(found(of_devices(2), model), (std::multiset<int>{0, 4}));
  keys.zero_bubble = false;
  EXPECT_EQ(found(of_devices(2), model), (std::multiset<int>{4}));
  keys.chunks = {1};
  EXPECT_TRUE(found(of_devices(2), model).empty());
  keys = pipelines(4);
  keys.zero_levels = {2, 3};  // shards gradients, which are then whole for a part only
  EXPECT_EQ(found(four, model).count(0), 0u);
  model::Config frozen = model;
  frozen.frozen_blocks = 1;
  EXPECT_EQ(found(four, frozen).size(), found(four, model).size());
  frozen.frozen_blocks = 2;
  EXPECT_TRUE(found(four, frozen).empty());
  keys.stages = {1};
  EXPECT_TRUE(found(of_devices(1), model).empty());
}

TEST(OtherOrders, PassesInFlightAreThoseOfTheOrder) {
  for (const int stages : {2, 3, 4, 8})
    for (const int chunks : {2, 3, 5})
      for (const int microbatches : {8, 9, 13, 40})
        for (const int run_ahead : {1, 2})
          for (int after = 0; after < stages; ++after) {
            const plan::Order order{.run_ahead = run_ahead, .chunks = chunks};
            int most = 0, own = 0;
            plan::RankPasses(order, {stages, microbatches}, stages - 1 - after)
                .each([&](const plan::Pass& pass) {
                  own += pass.forward ? 1 : -1;
                  most = std::max(most, own);
                });
            const PipelineConfig config{
                .num_stages = stages, .microbatches = microbatches, .order = order, .layouts = {}};
            // The one that is worked on counts as a whole microbatch.
            EXPECT_NEAR((config.in_flight(after) + 1.0) * chunks, most, 1e-9);
          }
}

/// The fastest plan of equal stages in a given order, each of which stores all layers.
double fastest_equal_s(const model::Config& model, int stages, int microbatches,
                       const hardware::Machine& machine, bool zero_bubble,
                       const std::vector<int>& numbers_of_chunks) {
  double fastest_s = infinity;
  for (const int chunks : numbers_of_chunks)
    for (const int run_ahead : {1, 2}) {
      plan::Plan plan = plan::equal_stages(model, microbatches, stages * chunks, {.microbatch = 1});
      plan.order.chunks = chunks;
      plan.order.run_ahead = run_ahead;
      plan.order.zero_bubble = zero_bubble;
      for (plan::Stage& stage : plan.stages) stage.stored_layers = stage.layers;
      fastest_s = std::min(fastest_s, schedule::steady_time(plan, model, machine));
    }
  return fastest_s;
}

// Six layers, embedding and head go into eight chunks of one each.
TEST(OtherOrders, TheSearchLeavesEmbeddingAndHeadAlone) {
  constexpr int stages = 4;
  const model::Config model = samples::small_model(6, false);
  const hardware::Machine machine(slow_kernels(stages));
  deck::SearchKeys keys = pipelines(stages);
  keys.zero_bubble = false;
  const hardware::Cluster cluster = of_devices(stages);
  const Result found = tune(model, stages, cluster, machine, keys, {.reasons = false});
  const plan::Plan& best = found.best[0].plan;
  EXPECT_EQ(best.order.chunks, 2) << plan::text(best);
  EXPECT_EQ(best.stages.front().layers, 0);
  EXPECT_EQ(best.stages.back().layers, 0);
  keys.lone_ends = false;
  const Result without = tune(model, stages, cluster, machine, keys, {.reasons = false});
  EXPECT_EQ(without.best[0].plan.order.chunks, 1);
  EXPECT_LT(found.best[0].seconds(), 0.98 * without.best[0].seconds());
}

// Where a pipeline has few microbatches and memory for all, chunks fill it sooner: the search finds
// a plan as fast as any of equal chunks, and says what it would cost to do without.
TEST(OtherOrders, TheSearchFindsChunks) {
  const model::Config model = samples::small_model(16, false);
  for (const int stages : {2, 4}) {
    const hardware::Machine machine(slow_kernels(stages));
    deck::SearchKeys keys = pipelines(stages);
    keys.zero_bubble = false;
    const hardware::Cluster cluster = of_devices(stages);
    const Result found = tune(model, 2 * stages, cluster, machine, keys);
    const RankedPlan& best = found.best[0];
    EXPECT_GT(best.plan.order.chunks, 1);
    EXPECT_EQ(best.plan.pipeline_size(), stages);
    EXPECT_LE(best.seconds(),
              1.01 * fastest_equal_s(model, stages, 2 * stages, machine, false, {2, 4}));
    EXPECT_GT(found.search.other_orders, 0);
    EXPECT_NE(report(found, cluster).find("no plan of 1F1B is faster"), std::string::npos);
    const auto without = std::ranges::find(found.ablations, "virtual stages", &Ablation::knob);
    ASSERT_NE(without, found.ablations.end());

    keys.chunks = {1};
    const Result one_chunk = tune(model, 2 * stages, cluster, machine, keys, {.reasons = false});
    EXPECT_EQ(one_chunk.best[0].plan.order.chunks, 1);
    EXPECT_LT(best.seconds(), 0.98 * one_chunk.best[0].seconds());
    EXPECT_NEAR(*without->iteration_s, one_chunk.best[0].seconds(),
                0.03 * one_chunk.best[0].seconds());
  }
}

TEST(OtherOrders, TheSearchFindsBackwardsInTwoParts) {
  const model::Config model = samples::small_model(16, false);
  const hardware::Machine machine(slow_kernels(4));
  for (const int microbatches : {4, 8}) {
    deck::SearchKeys keys = pipelines(4);
    keys.chunks = {1};
    const Result found = tune(model, microbatches, of_devices(4), machine, keys);
    EXPECT_EQ(found.best[0].plan.order.zero_bubble, 1);
    EXPECT_LE(found.best[0].seconds(),
              1.01 * fastest_equal_s(model, 4, microbatches, machine, true, {1}));
    keys.zero_bubble = false;
    const Result whole =
        tune(model, microbatches, of_devices(4), machine, keys, {.reasons = false});
    EXPECT_EQ(whole.search.other_orders, 0);
    EXPECT_LT(found.best[0].seconds(), 0.98 * whole.best[0].seconds());
  }
}

// The reason for data parallelism is the time of the plan that a search without it finds. That plan
// is of another order, though the best plan is of 1F1B.
TEST(OtherOrders, ReasonsLookAtThem) {
  const model::Config model = samples::small_model(16, false);
  const hardware::Machine machine(slow_kernels(4));
  deck::SearchKeys keys = pipelines(4);
  keys.stages = {};
  keys.dp = {};
  const Result found = tune(model, 8, of_devices(4), machine, keys);
  EXPECT_TRUE(found.best[0].plan.order.is_1f1b());
  const auto without = std::ranges::find(found.ablations, "data parallelism", &Ablation::knob);
  ASSERT_NE(without, found.ablations.end());
  keys.dp = {1};
  const Result searched = tune(model, 8, of_devices(4), machine, keys, {.reasons = false});
  EXPECT_FALSE(searched.best[0].plan.order.is_1f1b());
  const double most_s = 1.05 * searched.best[0].seconds();
  EXPECT_LE(*without->iteration_s, most_s);
  keys.chunks = {1};
  keys.zero_bubble = false;
  EXPECT_GT(tune(model, 8, of_devices(4), machine, keys, {.reasons = false}).best[0].seconds(),
            most_s);
}

// However scarce memory is, what is returned fits as it is placed, and is no slower than without
// other orders.
TEST(OtherOrders, PlansFit) {
  const model::Config model = samples::small_model(12, false);
  const hardware::Machine machine(slow_kernels(4));
  int in_other_orders = 0;
  for (int part = 4; part <= 10; part += 2) {
    const std::int64_t memory_bytes = 700'000 * part;
    const hardware::Cluster cluster = of_devices(4, memory_bytes);
    deck::SearchKeys keys = pipelines(4);
    keys.optim_offload = keys.act_offload = {0.0, 0.5, 1.0};
    const auto seconds = [&] {
      const RankedPlan best = tune(model, 4, cluster, machine, keys, {.reasons = false}).best[0];
      EXPECT_LE(best.placed_device_bytes(), memory_bytes);
      in_other_orders += !best.plan.order.is_1f1b();
      return best.seconds();
    };
    const double all_s = seconds();
    keys.chunks = {1};
    const double one_chunk_s = seconds();
    keys.zero_bubble = false;
    const double only_1f1b_s = seconds();
    EXPECT_LE(all_s, only_1f1b_s);
    EXPECT_LE(one_chunk_s, only_1f1b_s);
  }
  EXPECT_GE(in_other_orders, 2);
}

}  // namespace
}  // namespace brume::tuner
