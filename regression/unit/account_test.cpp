#include "schedule/account.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "planning_samples.hpp"
#include "schedule/compile.hpp"
#include "schedule/simulate.hpp"
#include "schedule/steady.hpp"

namespace brume::schedule {
namespace {

double seconds(const StageAccount& stage, Activity activity) {
  return stage.seconds[std::size_t(activity)];
}

// What computes comes first, then tp, dp, copies, messages; what is left is waiting, and what lies
// outside of the iteration does not count.
TEST(Account, WhatIsHiddenDoesNotCount) {
  std::vector<Activity> activities;
  std::vector<Span> spans;
  const auto add = [&](Activity activity, double start_s, double end_s) {
    activities.push_back(activity);
    spans.push_back({start_s, end_s});
  };
  add(Activity::computing, 0.0, 0.2);
  add(Activity::updating, 0.5, 0.6);
  add(Activity::collective_dp, 0.1, 0.4);
  add(Activity::copying, 0.3, 0.45);
  add(Activity::copying, 0.3, 0.45);
  add(Activity::messaging, 0.4, 0.7);
  add(Activity::copying, 0.9, 1.2);
  const Seconds found = seconds(activities, spans, 1.0);
  const Seconds wanted{0.2, 0.0, 0.1, 0.0, 0.2, 0.15, 0.15, 0.2};
  for (std::size_t a = 0; a < found.size(); ++a)
    EXPECT_NEAR(found[a], wanted[a], 1e-12) << name(Activity(a));
}

// Every moment of the iteration is counted once.
TEST(Account, ActivitiesAddUpToTheIteration) {
  const model::Config model = samples::small_model(6);
  const hardware::Machine machine = samples::round_profile();
  std::mt19937 random(5);
  for (int i = 0; i < 40; ++i) {
    plan::Plan plan = samples::random_plan(random, model.num_layers);
    const bool large = i % 4 == 0;
    if (large) plan = of_microbatches(plan, 9'000);  // more than are simulated
    SCOPED_TRACE(plan::text(plan));
    const Account found = account(plan, model, machine);
    EXPECT_DOUBLE_EQ(found.iteration_s,
                     large ? steady_time(plan, model, machine)
                           : simulate(compile_all(plan, model), plan, model, machine).iteration_s);
    ASSERT_EQ(found.stages.size(), plan.stages.size());
    for (const StageAccount& stage : found.stages) {
      const double sum = std::accumulate(stage.seconds.begin(), stage.seconds.end(), 0.0);
      EXPECT_NEAR(sum, found.iteration_s, 1e-9 * found.iteration_s);
      // What is almost nothing may be extrapolated to less.
      const double least_s = (large ? -1e-4 : -1e-9) * found.iteration_s;
      for (const double part : stage.seconds) EXPECT_GE(part, least_s);
    }
    const double share = found.waiting_share(plan);
    EXPECT_GE(share, 0.0);
    EXPECT_LT(share, 1.0);
  }
}

TEST(Account, WhatAPlanDoesNotDoTakesNoTime) {
  const model::Config model = samples::small_model(4);
  const hardware::Machine machine = samples::round_profile();
  plan::Plan plan{.global_batch = 8, .microbatches = 4, .stages = {{.layers = 4, .microbatch = 2}}};
  const StageAccount alone = account(plan, model, machine).stages[0];
  EXPECT_GT(seconds(alone, Activity::computing), 0.0);
  EXPECT_GT(seconds(alone, Activity::updating), 0.0);
  for (const Activity none :
       {Activity::recomputing, Activity::collective_tp, Activity::copying, Activity::messaging})
    EXPECT_EQ(seconds(alone, none), 0.0) << name(none);

  plan.stages[0].ckpt_layers = 4;
  plan.stages[0].optim_offload_ratio = 1.0;
  const StageAccount more = account(plan, model, machine).stages[0];
  EXPECT_GT(seconds(more, Activity::recomputing), 0.2 * seconds(more, Activity::computing));
  EXPECT_GT(seconds(more, Activity::copying), 0.0);
}

// Two equal stages and one microbatch: each waits while the other works.
TEST(Account, AStageWaitsForTheOther) {
  const model::Config model = samples::small_model(4);
  const plan::Plan plan{
      .global_batch = 2,
      .microbatches = 1,
      .stages = {{.layers = 2, .microbatch = 2}, {.first_layer = 2, .layers = 2, .microbatch = 2}}};
  const Account found = account(plan, model, samples::round_profile());
  EXPECT_GT(found.waiting_share(plan), 0.3);
  EXPECT_LT(found.waiting_share(plan), 0.7);
}

TEST(Account, MemoryAddsUpToWhatIsLiveAtOnce) {
  const model::Config model = samples::small_model(6);
  const hardware::Machine machine = samples::round_profile();
  std::mt19937 random(6);
  for (int i = 0; i < 20; ++i) {
    const plan::Plan plan = samples::random_plan(random, model.num_layers);
    SCOPED_TRACE(plan::text(plan));
    const Account found = account(plan, model, machine);
    for (int stage = 0; stage < plan.num_stages(); ++stage) {
      const Program whole = compile(plan, model, plan::first_rank(plan, stage));
      const auto& bytes = found.stages[std::size_t(stage)].device_bytes;
      EXPECT_EQ(std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}),
                whole.live_peak_bytes[std::size_t(Tier::device)]);
      EXPECT_GT(bytes[std::size_t(Content::weights)], 0);
    }
  }
}

}  // namespace
}  // namespace brume::schedule
