/// @file Several stages on the same ranks: their order, their messages, their time.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <tuple>

#include "../../src/schedule/order/order.hpp"
#include "bare_pipeline.hpp"
#include "planning_samples.hpp"
#include "price/price.hpp"
#include "random_plan.hpp"
#include "schedule/simulate.hpp"

namespace brume::schedule {
namespace {

/// "f0.1": the forward of microbatch 1 over chunk 0.
std::string text(const std::vector<plan::Pass>& passes) {
  std::string text;
  for (const plan::Pass& pass : passes)
    text += (text.empty() ? "" : " ") + std::string(pass.forward ? "f" : "b") +
            std::to_string(pass.chunk) + "." + std::to_string(pass.microbatch);
  return text;
}

plan::Plan equal_chunks(const model::Config& model, int size, int chunks, int microbatches) {
  plan::Plan plan = plan::equal_stages(model, microbatches, size * chunks, {.microbatch = 1});
  plan.order.chunks = chunks;
  return plan;
}

// Four ranks of two chunks, eight microbatches: the order of Megatron-LM on its first and its last
// rank.
TEST(Interleaved, HasTheOrderOfMegatronWhereStagesRunAhead) {
  plan::Plan plan = equal_chunks(samples::small_model(8), 4, 2, 8);
  plan.order.run_ahead = 2;
  EXPECT_EQ(text(passes(plan, 0, {})),
            "f0.0 f0.1 f0.2 f0.3 f1.0 f1.1 f1.2 f1.3 f0.4 f0.5 f0.6 b1.0 f0.7 b1.1 f1.4 b1.2 f1.5 "
            "b1.3 f1.6 b0.0 f1.7 b0.1 b0.2 b0.3 b1.4 b1.5 b1.6 b1.7 b0.4 b0.5 b0.6 b0.7");
  EXPECT_EQ(text(passes(plan, 3, {})),
            "f0.0 f0.1 f0.2 f0.3 f1.0 b1.0 f1.1 b1.1 f1.2 b1.2 f1.3 b1.3 f0.4 b0.0 f0.5 b0.1 f0.6 "
            "b0.2 f0.7 b0.3 f1.4 b1.4 f1.5 b1.5 f1.6 b1.6 f1.7 b1.7 b0.4 b0.5 b0.6 b0.7");
}

TEST(Interleaved, RoundsAreEven) {
  plan::Plan plan = equal_chunks(samples::small_model(4), 2, 2, 5);
  EXPECT_EQ(text(passes(plan, 0, {.mode = Mode::evaluate})),
            "f0.0 f0.1 f0.2 f1.0 f1.1 f1.2 f0.3 f0.4 f1.3 f1.4");
}

// Every pass of every stage once, a stage's in the order of microbatches, so that its gradients are
// summed as on one rank.
TEST(Interleaved, HasEveryPassOnce) {
  std::mt19937 random(3);
  for (int i = 0; i < 100; ++i) {
    model::Config model = test::random_model(random);
    const plan::Plan plan = test::interleaved_plan(random, model, 12);
    for (int first = 0; first < plan.pipeline_size(); ++first)
      for (int chunk = 0; chunk < plan.order.chunks; ++chunk) {
        int forwards = 0, backwards = 0;
        for (const plan::Pass& pass : passes(plan, first, {}))
          if (pass.chunk == chunk) {
            EXPECT_EQ(pass.microbatch, pass.forward ? forwards++ : backwards++);
          }
        EXPECT_EQ(forwards, plan.microbatches);
        EXPECT_EQ(backwards, plan.microbatches);
      }
  }
}

/// Of S ranks of v chunks, F + B of a chunk.
class Bubble : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  double simulated(int microbatches, int run_ahead) const {
    const auto [size, chunks] = GetParam();
    const model::Config model = test::bare_model(size * chunks);
    plan::Plan plan = equal_chunks(model, size, chunks, microbatches);
    plan.order.run_ahead = run_ahead;
    return simulate(compile_all(plan, model, {.tight = false}), plan, model, profile_).iteration_s /
           chunk_s();
  }
  double chunk_s() const {
    double seconds = 0.0;
    const model::Config model = test::bare_model(1);
    for (model::SegmentKind kind : model::segment_kinds(model, model::BlockKind::layer))
      for (price::Pass pass : {price::Pass::forward, price::Pass::backward})
        seconds += price::segment_s(model, profile_, kind, pass, {});
    return seconds;
  }
  const hardware::Profile profile_ = test::layers_only();
};

// (G + (S - 1) / v) (F + B) of all chunks, for G from S to 8 S, whether or not S divides G.
TEST_P(Bubble, IsThePapers) {
  const auto [size, chunks] = GetParam();
  for (int microbatches : {size, size + 1, 2 * size, 3 * size - 1, 4 * size, 8 * size})
    for (int run_ahead : {1, 2}) {
      const double expected = chunks * microbatches + size - 1;
      EXPECT_NEAR(simulated(microbatches, run_ahead), expected, 0.005 * expected)
          << microbatches << " microbatches, run_ahead " << run_ahead;
    }
}

INSTANTIATE_TEST_SUITE_P(Schedule, Bubble,
                         ::testing::Combine(::testing::Range(2, 9), ::testing::Range(1, 5)));

TEST(Interleaved, TheFirstMicrobatchesTellTheTime) {
  std::mt19937 random(5);
  test::expect_steady(
      8, 1, [&](model::Config& model) { return test::interleaved_plan(random, model, 16); });
}

}  // namespace
}  // namespace brume::schedule
