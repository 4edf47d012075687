// Steps from a plan to faster neighbours, by simulation.
#include "../../src/tuner/climb.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "../../src/tuner/rows.hpp"
#include "../../src/tuner/worker_pool.hpp"
#include "analyzer/analyzer.hpp"
#include "plan/neighbours.hpp"
#include "planning_samples.hpp"
#include "schedule/pack.hpp"
#include "schedule/steady.hpp"

namespace brume::tuner {
namespace {

constexpr int devices = 4, global_batch = 16;

struct Job {
  Climb climb(const std::vector<plan::Plan>& starts, const std::vector<plan::Plan>& refused = {}) {
    AllRows rows(cluster);
    WorkerPool workers(model, machine, deadline, 2);
    return tuner::climb(
        {model, global_batch, cluster, machine, keys, 64, deadline, &rows, &packings}, workers,
        starts, refused);
  }

  double seconds(const plan::Plan& plan) const {
    return schedule::steady_time(plan, model, machine, {}, 1, nullptr, true);
  }

  /// Two stages of two devices each.
  plan::Plan plan_like(plan::Stage like) const {
    like.devices_per_node = 2;
    like.microbatch = 1;
    like.dp = 2;
    return plan::equal_stages(model, global_batch, 2, like);
  }

  model::Config model = samples::small_model(4, false);
  hardware::Cluster cluster = hardware::NodeGroup{.nodes = 1,
                                                  .devices_per_node = devices,
                                                  .memory_bytes = std::int64_t{1} << 40,
                                                  .host_memory_bytes = std::int64_t{1} << 40};
  hardware::Machine machine{samples::round_profile(devices)};
  deck::SearchKeys keys;
  Deadline deadline;
  schedule::Packings packings;
};

TEST(Climb, EndsWhereNoNeighbourIsMuchFaster) {
  Job job;
  const plan::Plan start = job.plan_like({.ckpt_layers = 2, .optim_offload_ratio = 1.0});
  const Climb found = job.climb({start});
  const double seconds = job.seconds(found.plan);
  EXPECT_LT(seconds, 0.9 * job.seconds(start));
  EXPECT_GT(found.simulated, 0);
  for (const plan::Plan& other : plan::neighbours(found.plan, job.model, job.cluster, job.keys))
    EXPECT_GT(job.seconds(other), 0.995 * seconds) << plan::text(other);
}

TEST(Climb, ReachesNoPlanThatWasRefused) {
  Job job;
  const plan::Plan start = job.plan_like({.ckpt_layers = 2});
  std::vector<plan::Plan> refused{job.climb({start}).plan};
  for (int i = 0; i < 2; ++i) {
    const plan::Plan other = job.climb({start}, refused).plan;
    EXPECT_EQ(std::ranges::find(refused, other), refused.end());
    refused.push_back(other);
  }
}

TEST(Climb, KeepsTheFirstPlanOfEquals) {
  Job job;
  const plan::Plan best = job.climb({job.plan_like({})}).plan;
  EXPECT_EQ(job.climb({best, best}).plan, best);
}

TEST(Climb, StaysOutOfTimeWhereItBegan) {
  Job job;
  job.deadline = Deadline(0.0);
  const plan::Plan start = job.plan_like({.ckpt_layers = 2});
  EXPECT_EQ(job.climb({start}).plan, start);
}

// Memory for no more than everything recomputed.
TEST(Climb, TakesNoStepThatDoesNotFit) {
  Job job;
  const plan::Plan start = job.plan_like({.ckpt_layers = 2});
  analyzer::Analyzer analyzer(job.model, job.machine);
  std::int64_t bytes = 0;
  for (const auto& stage : analyzer.analyze(start).stages)
    bytes = std::max(bytes, stage.peak_bytes());
  job.cluster.groups[0].memory_bytes = bytes + bytes / 20;
  const plan::Plan found = job.climb({start}).plan;
  for (const auto& stage : analyzer.analyze(found).stages)
    EXPECT_LE(stage.peak_bytes(), 1.1 * double(bytes));
}

}  // namespace
}  // namespace brume::tuner
