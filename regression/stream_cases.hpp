/// @file The engine where channels have streams: on a device made of threads, and on a GPU.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include "contract.hpp"

namespace brume::engine {
namespace {

class StreamContract : public ::testing::TestWithParam<int> {};

/// Whatever streams do late, each plan with its knobs gives what one rank gives, and no guard or
/// poison is seen, with transfers beside computation and without.
TEST_P(StreamContract, RandomPlanTrainsLikeOneRank) {
  std::mt19937 random(unsigned(GetParam()) * 7919 + 13);
  model::Config model = test::random_model(random);
  plan::Plan plan = GetParam() % 6 == 5   ? test::zero_bubble_plan(random, model, 6)
                    : GetParam() % 3 == 2 ? test::interleaved_plan(random, model, 6)
                    : GetParam() % 2 == 0 ? test::random_plan(random, model, 4)
                                          : test::mixed_plan(random, model, 6);
  if (GetParam() % 2 == 1) test::share_sequences(model, plan, 1);
  const test::TokenFixture tokens(model.vocab_size);
  const data::Sampler data = tokens.sampler(model.seq_len);
  Settings settings = test::contract_settings(4);
  const test::Trained one =
      test::train(test::one_rank_plan(model, plan.global_batch), model, settings, data);
  settings.check_memory = GetParam() % 4 < 2;
  const test::Trained all = test::train(plan, model, settings, data);
  EXPECT_LE(test::largest_difference(all.losses, one.losses), 1e-5) << plan::text(plan);
  EXPECT_LE(test::largest_difference(all.norms, one.norms), 1e-4) << plan::text(plan);
  settings.overlap = false;
  settings.one_collective = true;
  const test::Trained serial = test::train(plan, model, settings, data);
  EXPECT_EQ(serial.losses, all.losses);
  EXPECT_EQ(serial.norms, all.norms);
}

INSTANTIATE_TEST_SUITE_P(Engine, StreamContract, ::testing::Range(0, test::trials(6)));

/// Times are those of the streams: a task begins when what it waits for and what stands before it
/// on its channel has ended, and the iteration ends with the last one.
TEST(StreamTimes, TasksRunWhenTheirStreamsDo) {
  std::mt19937 random(3);
  model::Config model = test::random_model(random);
  model.num_layers = 4;
  model.num_heads = 2;
  const test::TokenFixture tokens(model.vocab_size);
  const data::Sampler data = tokens.sampler(model.seq_len);
  plan::Plan plan = test::plan_of(random, model, {{1, 2, 1}, {1, 2, 1}});
  for (plan::Stage& stage : plan.stages)
    stage.weight_offload_ratio = stage.optim_offload_ratio = stage.act_offload_ratio = 0.5;
  comm::run_local(plan.devices(), [&](comm::Communicator& world) {
    Engine engine(plan, model, test::contract_settings(3), world);
    engine.step(data);
    const StepMetrics metrics = engine.step(data);
    const std::vector<schedule::Span>& times = engine.last_times();
    const std::vector<schedule::Task>& tasks = engine.program().tasks;
    std::array<double, schedule::num_channels> busy_until_s{};
    double last_s = 0.0;
    for (std::size_t id = 0; id < tasks.size(); ++id) {
      const schedule::Span& time = times[id];
      double& before_s = busy_until_s[std::size_t(tasks[id].channel)];
      EXPECT_GE(time.start_s, before_s) << schedule::label(tasks[id]);
      EXPECT_GE(time.end_s, time.start_s) << schedule::label(tasks[id]);
      for (int other : tasks[id].waits)
        EXPECT_GE(time.start_s, times[std::size_t(other)].end_s) << schedule::label(tasks[id]);
      before_s = time.end_s;
      last_s = std::max(last_s, time.end_s);
    }
    EXPECT_EQ(metrics.iteration_s, last_s);
    EXPECT_GT(metrics.busy_s[std::size_t(schedule::Channel::h2d)], 0.0);
  });
}

}  // namespace
}  // namespace brume::engine
