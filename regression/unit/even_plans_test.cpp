// Plans of equal stages and one strategy, which are known before the search begins.
#include "../../src/tuner/even_plans.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "../../src/tuner/rows.hpp"
#include "../../src/tuner/worker_pool.hpp"
#include "analyzer/analyzer.hpp"
#include "planning_samples.hpp"

namespace brume::tuner {
namespace {

constexpr int devices = 8, global_batch = 16;

struct Job {
  explicit Job(std::int64_t memory_bytes)
      : cluster(hardware::NodeGroup{.nodes = 1,
                                    .devices_per_node = devices,
                                    .memory_bytes = memory_bytes,
                                    .host_memory_bytes = std::int64_t{1} << 40}) {}

  std::vector<Candidate> even_plans() {
    AllRows rows(cluster);
    WorkerPool workers(model, machine, never, 2);
    return tuner::even_plans({model, global_batch, cluster, machine, keys, 64, never, &rows},
                             workers);
  }

  model::Config model = samples::small_model(8, false);
  hardware::Cluster cluster;
  hardware::Machine machine{samples::round_profile(devices)};
  deck::SearchKeys keys;
  Deadline never;
};

struct Predicted {
  double iteration_s;
  std::int64_t peak_bytes;
};

/// Predictions of all plans of 1F1B with equal stages whose layers all do the same.
std::vector<Predicted> all_even_plans(const Job& job) {
  analyzer::Analyzer analyzer(job.model, job.machine);
  std::vector<Predicted> found;
  for (const int num_stages : {1, 2, 4, 8})
    for (int tp = 1; tp <= std::min(4, devices / num_stages); tp *= 2)
      for (int microbatch = 1; microbatch <= global_batch; microbatch *= 2)
        for (int zero_level = 0; zero_level <= 3; ++zero_level)
          for (const int level : {-1, 0, 1})
            for (const int run_ahead : {1, 2}) {
              const int dp = devices / num_stages / tp;
              if (global_batch % (dp * microbatch) != 0 || (dp == 1 && zero_level > 0)) continue;
              plan::Plan plan = plan::equal_stages(job.model, global_batch, num_stages,
                                                   {.devices_per_node = dp * tp,
                                                    .microbatch = microbatch,
                                                    .dp = dp,
                                                    .tp = tp,
                                                    .zero_level = zero_level});
              plan.order.run_ahead = run_ahead;
              for (plan::Stage& stage : plan.stages)
                (level > 0 ? stage.ckpt_layers : stage.stored_layers) =
                    level != 0 ? stage.layers : 0;
              const analyzer::Prediction prediction = analyzer.analyze(plan);
              std::int64_t peak_bytes = 0;
              for (const auto& stage : prediction.stages)
                peak_bytes = std::max(peak_bytes, stage.peak_bytes());
              found.push_back({prediction.iteration_s, peak_bytes});
            }
  return found;
}

TEST(EvenPlans, TheFirstIsTheFastest) {
  const std::vector<Predicted> all = all_even_plans(Job(0));
  bool short_of_memory = false;
  for (const std::int64_t memory_bytes : {std::int64_t{1} << 40, std::int64_t{9'000'000},
                                          std::int64_t{5'000'000}, std::int64_t{3'000'000}}) {
    Job job(memory_bytes);
    job.keys.chunks = {1};
    job.keys.zero_bubble = false;
    const std::vector<Candidate> found = job.even_plans();
    double fastest_s = infinity;
    for (const Predicted& one : all)
      if (one.peak_bytes <= memory_bytes) fastest_s = std::min(fastest_s, one.iteration_s);
    ASSERT_EQ(found.empty(), fastest_s == infinity) << memory_bytes;
    if (found.empty()) continue;
    // Each configuration has only its strategy of the least bound predicted.
    EXPECT_LE(found[0].predicted_s, 1.02 * fastest_s) << memory_bytes;
    for (const Candidate& one : found) {
      EXPECT_NO_THROW(plan::check(one.plan, job.model, job.cluster));
      EXPECT_GE(one.predicted_s, found[0].predicted_s);
      for (const plan::Stage& stage : one.plan.stages) {
        EXPECT_EQ(stage.dp, one.plan.stages[0].dp);
        EXPECT_EQ(stage.zero_level, one.plan.stages[0].zero_level);
      }
      short_of_memory |= one.plan.stages[0].ckpt_layers > 0;
    }
  }
  EXPECT_TRUE(short_of_memory);
}

TEST(EvenPlans, OtherOrdersAreAmongThem) {
  Job job(std::int64_t{1} << 40);
  job.keys.stages = {4};
  bool chunks = false, split = false;
  for (const Candidate& one : job.even_plans()) {
    chunks |= one.plan.order.chunks > 1;
    split |= one.plan.order.splits_backward();
  }
  EXPECT_TRUE(chunks);
  EXPECT_TRUE(split);
}

// Stages between the ends take what does not divide.
TEST(EvenPlans, EndsHaveFewerLayers) {
  Job job(std::int64_t{1} << 40);
  job.model = samples::small_model(10, false);
  job.keys.stages = {4};
  job.keys.chunks = {1};
  const std::vector<Candidate> found = job.even_plans();
  ASSERT_FALSE(found.empty());
  std::vector<int> layers;
  for (const plan::Stage& stage : found[0].plan.stages) layers.push_back(stage.layers);
  EXPECT_EQ(layers, (std::vector<int>{2, 3, 3, 2}));
}

}  // namespace
}  // namespace brume::tuner
