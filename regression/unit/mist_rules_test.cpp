#include <gtest/gtest.h>

#include <algorithm>

#include "mist/counting.hpp"
#include "mist_cases.hpp"

namespace brume::mist {
namespace {

constexpr double mib = 1024.0 * 1024.0;

TEST(Layer, LongBackwardCountsAsTwiceForward) {
  const std::vector<Operator> at_limit{{1, 1e-3, 2.3e-3, 0, 0}};
  const std::vector<Operator> above{{3, 1e-3, 2.4e-3, 0, 0}};
  EXPECT_DOUBLE_EQ(layer_time(at_limit, 0.0).backward_s, 2.3e-3);
  EXPECT_DOUBLE_EQ(layer_time(above, 0.0).backward_s, 6e-3);
  EXPECT_DOUBLE_EQ(layer_time(above, 0.0).forward_s, 3e-3);
}

TEST(Layer, ShortOperatorsDoNotCount) {
  const std::vector<Operator> short_forward{{1, 49e-6, 110e-6, 0, 0}};
  const std::vector<Operator> short_backward{{1, 80e-6, 99e-6, 0, 0}};
  EXPECT_EQ(layer_time(short_forward, 0.0).backward_s, 0.0);
  EXPECT_EQ(layer_time(short_backward, 0.0).forward_s, 0.0);
}

TEST(Layer, OperatorsAtTheLimitsCount) {
  const std::vector<Operator> at_limits{{2, 50e-6, 100e-6, 0, 0}};
  EXPECT_DOUBLE_EQ(layer_time(at_limits, 0.0).forward_s, 100e-6);
  EXPECT_DOUBLE_EQ(layer_time(at_limits, 0.0).backward_s, 200e-6);
}

// An all-reduce that stands alone has no backward: its forward costs nothing.
TEST(Layer, CollectivesCountWithTheirOperatorOnly) {
  const std::vector<Operator> operators{{1, 1e-3, 2e-3, 0, 5e-3}, {1, 0, 0, 5e-3, 0}};
  const LayerTime time = layer_time(operators, 0.0);
  EXPECT_DOUBLE_EQ(time.forward_s, 1e-3);
  EXPECT_DOUBLE_EQ(time.backward_s, 7e-3);
  EXPECT_EQ(time.reduce_forward_s, 0.0);
  EXPECT_DOUBLE_EQ(time.reduce_backward_s, 5e-3);
}

/// Two stages of a small model, 8 layers each, on one rank each; the ends of the model take no
/// time.
Case two_stages(int recomputed, double offload_saved) {
  Case mist;
  mist.model = {.flash = true, .hidden = 1024, .ffn = 4096, .heads = 16};
  mist.hardware = hardware_by_name().at("l4");
  mist.microbatches = 4;
  Stage stage;
  stage.layers = 8;
  stage.recomputed = recomputed;
  stage.strategy.offload_saved = offload_saved;
  stage.block = {1e-3, 2e-3, 0.0, 0.0, 0.0};
  mist.stages = {stage, stage};
  return mist;
}

// Half of what is saved leaves, but for one layer that comes back: a full one, or, when all others
// are recomputed, the input of a recomputed one.
TEST(MistMemory, OffloadedActivationsComeBackForOneLayer) {
  const LayerBytes block = block_bytes(two_stages(0, 0.0).model, 1, 1);
  const auto less_mib = [](int recomputed) {
    return predict(two_stages(recomputed, 0.0)).stages[0].peak_forward_mib -
           predict(two_stages(recomputed, 0.5)).stages[0].peak_forward_mib;
  };
  const double input = block.saved_recomputed / mib;
  const double full = block.saved / mib;
  EXPECT_NEAR(less_mib(6), 0.5 * (6 * input + 2 * full + 6 * input), 1e-9);
  EXPECT_NEAR(less_mib(7), 0.5 * (7 * input + full + 7 * input - input), 1e-9);
  EXPECT_NEAR(less_mib(8), 0.5 * (8 * input + 7 * input - input), 1e-9);
}

// The head's backward holds the peak, and by then the layer before it is back.
TEST(MistMemory, OffloadDoesNotHelpALoneLayerBeforeTheHead) {
  const auto peak_mib = [](double offload_saved) {
    Case mist = two_stages(0, offload_saved);
    mist.stages[1].layers = 1;
    return predict(mist).stages[1].peak_backward_mib;
  };
  EXPECT_NEAR(peak_mib(0.5), peak_mib(0.0), 1e-9);
}

TEST(Time, AStageOfOneLayerCountsAsTwo) {
  Case mist = two_stages(0, 0.0);
  mist.stages[0].layers = 1;
  EXPECT_FLOAT_EQ(predict(mist).stages[0].stable_s, 2 * 3e-3);
  mist.stages[0].recomputed = 1;
  EXPECT_FLOAT_EQ(predict(mist).stages[0].stable_s, 2 * 4e-3);
}

// Two replicas on four nodes talk between nodes: 1.1 (gib / 0.4895 / 2 + 4.5 ms).
TEST(Time, FewReplicasSpanOneRankANode) {
  Case mist = two_stages(0, 0.0);
  mist.stages[1].nodes = 4;
  mist.stages[1].strategy.dp = 2;
  mist.stages[1].strategy.shard_grads = true;
  const double gib = block_bytes(mist.model, 1, 1).weights / (1024.0 * mib);
  const double scatter_s = 1.1 * (gib / 0.4895 / 2 + 4.5e-3);
  const double compute_s = 3e-3 * 8;
  const double together_s = overlapped_s(mist.hardware.slowdowns, {2e-3, scatter_s, 0, 0});
  EXPECT_NEAR(predict(mist).stages[1].stable_s, compute_s - 7 * 2e-3 + 7 * together_s + scatter_s,
              1e-7);
}

TEST(Time, ExtrasHideBehindEarlierStages) {
  Case mist = two_stages(0, 0.0);
  mist.stages[1].strategy.offload_optimizer = 0.01;
  const Prediction ours = predict(mist);
  const double t = 8 * 3e-3;
  ASSERT_GT(ours.stages[1].delta_s, 0.0);
  ASSERT_LT(ours.stages[1].delta_s, t);
  EXPECT_NEAR(ours.iteration_s, 2 * t + 3 * t, 1e-8);
}

// h 1024, s 4096: 4.5 % for the sequence; in a pipeline 2.5 % more, inside one 3.5 %.
TEST(MistMemory, MarginGrowsWithWhatScatters) {
  const auto margin = [](std::size_t stage, auto change) {
    Case mist = two_stages(0, 0.0);
    mist.model.sequence = 4096;
    mist.stages.push_back(mist.stages[0]);
    change(mist.stages[stage].strategy);
    const StagePrediction ours = predict(mist).stages[stage];
    return ours.needed_mib / std::max(ours.peak_forward_mib, ours.peak_backward_mib);
  };
  using S = Strategy;
  EXPECT_NEAR(margin(0, [](S&) {}), 1.07, 1e-12);
  EXPECT_NEAR(margin(1, [](S&) {}), 1.08, 1e-12);
  EXPECT_NEAR(margin(2, [](S& s) { s.offload_weights = 0.5; }), 1.095, 1e-12);
  EXPECT_NEAR(margin(2, [](S& s) { s.offload_grads = 0.5; }), 1.095, 1e-12);
  EXPECT_NEAR(margin(2, [](S& s) { s.offload_optimizer = 0.5; }), 1.10, 1e-12);
  EXPECT_NEAR(margin(2, [](S& s) { s.offload_saved = 0.5; }), 1.11, 1e-12);
  EXPECT_NEAR(margin(2, [](S& s) { s.shard_weights = true; }), 1.095, 1e-12);
  EXPECT_NEAR(margin(2, [](S& s) { s.shard_grads = true; }), 1.095, 1e-12);
  EXPECT_NEAR(margin(2, [](S& s) { s.tp = 2; }), 1.11, 1e-12);
  EXPECT_NEAR(margin(2, [](S& s) { s.microbatch = 4; }), 1.08, 1e-12);
}

}  // namespace
}  // namespace brume::mist
