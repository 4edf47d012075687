/// @file Backwards in two parts: their order, their Programs, their time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <utility>

#include "../../src/schedule/order/order.hpp"
#include "bare_pipeline.hpp"
#include "planning_samples.hpp"
#include "price/price.hpp"
#include "random_plan.hpp"
#include "schedule/simulate.hpp"
#include "schedule/verify.hpp"
#include "trials.hpp"

namespace brume::schedule {
namespace {

plan::Plan equal_stages(const model::Config& model, int size, int microbatches, int run_ahead = 1) {
  plan::Plan plan = plan::equal_stages(model, microbatches, size, {.microbatch = 1});
  plan.order.run_ahead = run_ahead;
  plan.order.zero_bubble = 1;
  return plan;
}

std::string text(const std::vector<plan::Pass>& passes) {
  std::string text;
  for (const plan::Pass& pass : passes)
    text += (text.empty() ? "" : " ") +
            std::string(pass.forward   ? "F"
                        : pass.weights ? "W"
                                       : "B") +
            std::to_string(pass.microbatch);
  return text;
}

// The figures of the paper: four stages, the first and the last one.
TEST(ZeroBubble, HasTheOrderOfThePaper) {
  const plan::Plan plan = equal_stages(samples::small_model(4), 4, 8);
  EXPECT_EQ(text(passes(plan, 0, {})),
            "F0 F1 F2 F3 B0 W0 F4 B1 W1 F5 B2 W2 F6 B3 W3 F7 B4 W4 B5 W5 B6 W6 B7 W7");
  EXPECT_EQ(text(passes(plan, 3, {})),
            "F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 F5 B5 W2 F6 B6 W3 F7 B7 W4 W5 W6 W7");
  EXPECT_EQ(text(passes(plan, 3, {.mode = Mode::evaluate})), "F0 F1 F2 F3 F4 F5 F6 F7");
  const plan::Plan ahead = equal_stages(samples::small_model(4), 4, 8, 2);
  EXPECT_EQ(text(passes(ahead, 0, {})),
            "F0 F1 F2 F3 F4 F5 F6 B0 W0 F7 B1 W1 B2 W2 B3 W3 B4 W4 B5 W5 B6 W6 B7 W7");
  EXPECT_EQ(text(passes(ahead, 3, {})),
            "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 W0 F7 B7 W1 W2 W3 W4 W5 W6 W7");
  // Each message is waited for.
  for (int stage = 0; stage < 4; ++stage)
    EXPECT_EQ(passes(ahead, stage, {.overlap = false}), passes(plan, stage, {}));
}

/// Every part of every microbatch once and in their order, so that sums keep theirs; on no stage
/// more than so many microbatches between their forward and their second part.
void expect_every_pass_once(const plan::Plan& plan, int kept) {
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    plan::Done done;
    int most = 0;
    for (const plan::Pass& pass : passes(plan, stage, {})) {
      EXPECT_EQ(pass.microbatch, pass.forward   ? done.forwards
                                 : pass.weights ? done.weights
                                                : done.backwards);
      done.add(pass);
      EXPECT_LE(done.weights, done.backwards);
      EXPECT_LE(done.backwards, done.forwards);
      most = std::max(most, done.forwards - done.weights);
    }
    EXPECT_EQ(done.weights, plan.microbatches);
    EXPECT_EQ(most, kept);
  }
}

TEST(ZeroBubble, HasEveryPassOnceAndTheMemoryOfTheFirstStage) {
  for (int size = 2; size <= 6; ++size)
    for (int microbatches = 1; microbatches <= 14; ++microbatches)
      for (const int run_ahead : {1, 2})
        expect_every_pass_once(
            equal_stages(samples::small_model(size), size, microbatches, run_ahead),
            std::min(run_ahead * (size - 1) + 1, microbatches));
}

const int num_plans = test::trials(9);

class ZeroBubblePlans : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    std::mt19937 random(unsigned(GetParam()) + 1);
    const std::vector<model::Config> special = test::special_models();
    model = GetParam() % 3 == 2 ? special[std::size_t(GetParam() / 3) % special.size()]
                                : test::random_family_model(random);
    if (GetParam() % 3 == 0) model.head_tokens = 5;
    model.isolated = GetParam() % 4 == 1;
    plan = test::zero_bubble_plan(random, model, 8);
  }
  model::Config model;
  plan::Plan plan;
};

TEST_P(ZeroBubblePlans, AreOrderedAndFreeOfDeadlock) {
  for (const Options& options : {Options{}, Options{.overlap = false, .tight = false},
                                 Options{.mode = Mode::evaluate, .tight = false},
                                 Options{.one_collective = true, .tight = false}}) {
    const std::vector<Program> programs = compile_all(plan, model, options);
    for (const Program& program : programs)
      EXPECT_EQ(verify(program), std::vector<std::string>{}) << plan::text(plan);
    EXPECT_EQ(verify(programs, plan), std::vector<std::string>{}) << plan::text(plan);
  }
}

// Gradients of linear layers are made by second parts only, which no message waits for.
TEST_P(ZeroBubblePlans, EachLayerHasBothPartsOfEachMicrobatch) {
  for (const Program& program : compile_all(plan, model, {.tight = false})) {
    std::map<std::tuple<int, int, model::SegmentKind>, std::pair<int, int>> parts;
    for (const Task& task : program.tasks) {
      auto& [first, second] = parts[{task.block, task.microbatch, task.segment}];
      if (task.operation == Operation::backward_input) first = 1;  // several runs
      if (task.operation == Operation::backward_weights) {
        ++second;
        EXPECT_EQ(first, 1) << label(task);
      }
      if (task.operation == Operation::backward) {
        EXPECT_TRUE(task.segment == model::SegmentKind::embedding ||
                    task.segment == model::SegmentKind::head);
      }
    }
    int layers = 0;
    for (const auto& [key, count] : parts) {
      EXPECT_EQ(count.first, count.second);
      layers += count.second;
    }
    const plan::Stage& stage = plan.stages[std::size_t(plan::stage_index(plan, program.rank))];
    EXPECT_EQ(layers, stage.layers * plan.microbatches * (model.parallel() ? 1 : 2));
  }
}

INSTANTIATE_TEST_SUITE_P(Schedule, ZeroBubblePlans, ::testing::Range(0, num_plans));

class ZeroBubbleTime : public ::testing::TestWithParam<int> {};

// As plan::RankPasses says, of ZB-H1 and ZB-H2; 1F1B has a bubble of (S - 1) (F + B + W).
TEST_P(ZeroBubbleTime, IsThePapers) {
  const int size = GetParam();
  const model::Config model = test::bare_model(size);
  const hardware::Profile profile = test::layers_only();
  const auto layer_s = [&](price::Pass pass) {
    double seconds = 0.0;
    for (model::SegmentKind kind : model::segment_kinds(model, model::BlockKind::layer))
      seconds += price::segment_s(model, profile, kind, pass, {});
    return seconds;
  };
  const double f = layer_s(price::Pass::forward), b = layer_s(price::Pass::backward_input),
               w = layer_s(price::Pass::backward_weights);
  ASSERT_LE(w, std::min(f, b));
  EXPECT_DOUBLE_EQ(b + w, layer_s(price::Pass::backward));
  for (int microbatches : {size, size + 1, 2 * size, 3 * size - 1, 4 * size, 8 * size}) {
    plan::Plan plan = equal_stages(model, size, microbatches);
    const auto simulated = [&] {
      return simulate(compile_all(plan, model, {.tight = false}), plan, model, profile).iteration_s;
    };
    const double h1 = microbatches * (f + b + w) + (size - 1) * (f + b - w);
    EXPECT_NEAR(simulated(), h1, 0.005 * h1) << microbatches << " microbatches";
    plan.order.run_ahead = 2;
    const double h2 = std::max(microbatches * (f + b + w) + (size - 1) * f,
                               h1 - std::min(microbatches - size, size - 1) * w);
    EXPECT_NEAR(simulated(), h2, 0.005 * h2) << microbatches << " microbatches";
    plan.order.run_ahead = 1, plan.order.zero_bubble = 0;
    const double plain = (microbatches + size - 1) * (f + b + w);
    EXPECT_NEAR(simulated(), plain, 0.005 * plain) << microbatches << " microbatches";
  }
}

INSTANTIATE_TEST_SUITE_P(Schedule, ZeroBubbleTime, ::testing::Range(2, 9));

TEST(ZeroBubble, TheFirstMicrobatchesTellTheTime) {
  std::mt19937 random(5);
  test::expect_steady(
      6, 1, [&](model::Config& model) { return test::zero_bubble_plan(random, model, 8); });
}

}  // namespace
}  // namespace brume::schedule
