#include "price/price.hpp"

#include <gtest/gtest.h>

#include "planning_samples.hpp"

namespace brume::price {
namespace {

const hardware::Profile profile = samples::round_profile(2);  // 1e10 B/s of memory, 1 us a task

TEST(Price, PassesOverMemoryAreCounted) {
  EXPECT_DOUBLE_EQ(copy_s(profile, 1e10), 2.0);
  EXPECT_DOUBLE_EQ(accumulate_s(profile, 1e10), 3.0);
  EXPECT_DOUBLE_EQ(clear_s(profile, 1e10), 3.0);
  EXPECT_DOUBLE_EQ(norm_s(profile, 1e10), 1.0);
  EXPECT_EQ(copy_s(hardware::Profile{}, 1e10), 0.0);
}

TEST(Price, EachTaskTakesItsOverhead) {
  EXPECT_DOUBLE_EQ(task_s(profile, 1.0), 1.0 + 1e-6);
  EXPECT_DOUBLE_EQ(task_s(profile, 1.0, 2), 1.0 + 2e-6);
}

// Beside a device by the rate that was measured; else nothing is gained over the device's step.
TEST(Price, TheProcessorStepsApartOnlyWhereItsRateIsKnown) {
  EXPECT_FALSE(host_is_apart(profile));
  EXPECT_DOUBLE_EQ(
      host_update_s({}, profile, 1e6),
      optimizer_s({}, profile, 1e6) + copy_in_s(profile, 8e6) + copy_out_s(profile, 8e6));
  hardware::Profile beside = profile;
  beside.host_updates_per_s = 2e8;
  EXPECT_TRUE(host_is_apart(beside));
  EXPECT_DOUBLE_EQ(host_update_s({}, beside, 1e6), 5e-3);
}

TEST(Price, RanksOfAPlanFillNodes) {
  EXPECT_EQ(world_ranks(profile, 1), (Ranks{1, 1}));
  EXPECT_EQ(world_ranks(profile, 2), (Ranks{1, 2}));
  EXPECT_EQ(world_ranks(profile, 5),
            (Ranks{.nodes = 3, .per_node = 2, .extent = 3, .stage_nodes = 3}));
  EXPECT_EQ(ranks({.nodes = 2, .devices_per_node = 8, .dp = 4, .tp = 4}, model::data_axes),
            (Ranks{.nodes = 2, .per_node = 2, .extent = 2, .stage_nodes = 2}));
  EXPECT_EQ(collective_s(profile, Collective::all_reduce, {1, 1}, 1e6), 0.0);
}

// Two stages of two ranks each: a node holds one stage, and the plan may turn the nodes round.
TEST(Price, RanksAreOnTheNodesThatThePlanNames) {
  plan::Plan plan;
  for (int first = 0; first < 2; ++first)
    plan.stages.push_back({.first_layer = first, .layers = 1, .devices_per_node = 2, .dp = 2});
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_EQ(node_of(plan, hardware::Machine(profile), rank).index, rank / 2);
  plan.node_order = {1, 0};
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_EQ(node_of(plan, hardware::Machine(profile), rank).index, 1 - rank / 2);
}

// 2 GB/s and 1.2 GB/s, after 20 us.
TEST(Price, TheDiskHasAPriceForEachDirection) {
  EXPECT_NEAR(disk_read_s(profile, 1e8), 0.05002, 1e-6);
  EXPECT_NEAR(disk_write_s(profile, 1e8), 0.08335, 1e-5);
}

TEST(Price, TheTableTellsWhereTimesAreFrom) {
  const OperatorPrice by_roofline{"layer",
                                  "matmul",
                                  {4, 8},
                                  {1.0, hardware::Source::roofline},
                                  {2.0, hardware::Source::roofline}};
  const OperatorPrice measured{
      "head", "gelu", {16}, {3e-3, hardware::Source::measured}, {4e-3, hardware::Source::measured}};
  const std::string text = price_table({by_roofline, measured, measured});
  EXPECT_TRUE(text.starts_with("operator times: 2 measured, 0 interpolated, 1 by roofline\n"));
  EXPECT_NE(text.find("4 x 8"), text.npos);
  EXPECT_NE(text.find("3.00 ms"), text.npos);
}

/// Stages of one rank each, on these groups.
plan::Plan on_groups(const std::vector<std::string>& groups) {
  plan::Plan plan;
  for (const std::string& group : groups) plan.stages.push_back({.layers = 1, .group = group});
  return plan;
}

// Ranks 0 and 1 share a node, rank 2 is on the next one.
TEST(Price, AMessageIsPricedByWhereItsEndsAre) {
  const plan::Plan plan = on_groups({"", "", ""});
  EXPECT_EQ(ends(plan, profile, 0, 1), (Ends{0, 0, false}));
  EXPECT_EQ(ends(plan, profile, 2, 1), (Ends{0, 0, true}));
  EXPECT_EQ(send_s(hardware::Machine(profile), Ends{0, 0, true}, 1e6),
            hardware::link_time(profile, hardware::LinkKind::send, 2, 1, 1e6));
}

// Four stages on nodes of two ranks, so ranks 0 and 1 are on the first node: of four nodes the
// links of 0 with 2 and of 1 with 2 are slow.
TEST(Price, TheSlowestPairOfNodesHoldsTransfersUp) {
  hardware::Profile slow = profile;
  slow.slow_pairs = {{2, 0, 2.0}, {1, 2, 5.0}, {3, 3, 9.0}};
  const hardware::Machine machine(slow);
  plan::Plan plan = on_groups({"", "", "", "", "", "", "", ""});
  EXPECT_EQ(ends(plan, machine, 0, 2), (Ends{0, 0, true}));
  EXPECT_EQ(ends(plan, machine, 4, 0), (Ends{0, 0, true, 2.0}));
  EXPECT_EQ(ends(plan, machine, 6, 7), (Ends{0, 0, false}));
  EXPECT_DOUBLE_EQ(send_s(machine, Ends{0, 0, true, 2.0}, 1e6),
                   2.0 * send_s(machine, Ends{0, 0, true}, 1e6));
  EXPECT_DOUBLE_EQ(collective_s(slow, Collective::all_reduce, {2, 1, 5.0}, 1e6),
                   5.0 * collective_s(slow, Collective::all_reduce, {2, 1}, 1e6));
  const auto times = [&](const std::vector<int>& ranks) {
    return times_as_long(plan, machine, ranks);
  };
  EXPECT_EQ(times({0, 1}), 1.0);
  EXPECT_EQ(times({0, 2, 6}), 1.0);
  EXPECT_EQ(times({0, 4}), 2.0);
  EXPECT_EQ(times({0, 2, 4, 6}), 5.0);
  plan.node_order = {0, 1, 3, 2};
  EXPECT_EQ(times({0, 4}), 1.0);
  EXPECT_EQ(times({0, 6}), 2.0);
}

TEST(Price, AMessageBetweenGroupsTakesTheirLink) {
  const hardware::Machine machine(
      hardware::Cluster(std::vector<hardware::NodeGroup>{{.name = "a"}, {.name = "b"}}),
      {profile, profile}, {{.between = {"a", "b"}, .gib_per_s = 1.0, .latency_s = 0.5}});
  const Ends apart = ends(on_groups({"a", "b"}), machine, 1, 0);
  EXPECT_EQ(apart, (Ends{1, 0, false}));
  EXPECT_DOUBLE_EQ(send_s(machine, apart, 1 << 30), 1.5);
}

/// 1e12 FLOP/s in bf16, 1e11 B/s of memory.
hardware::Profile of_roofline() {
  hardware::Profile profile;
  profile.flops_per_s = 1e12;
  profile.bytes_per_s = 1e11;
  return profile;
}

struct Passes {
  double forward_s, backward_s;
};

/// A layer's MLP.
Passes mlp_s(model::Precision precision, const hardware::Profile& profile) {
  const model::Config model{.num_layers = 2,
                            .hidden_size = 64,
                            .num_heads = 4,
                            .ffn_size = 256,
                            .seq_len = 32,
                            .vocab_size = 100,
                            .precision = precision};
  return {segment_s(model, profile, model::SegmentKind::mlp, Pass::forward, {.microbatch = 2}),
          segment_s(model, profile, model::SegmentKind::mlp, Pass::backward, {.microbatch = 2})};
}

// Two products of 64 x 64 x 256. Each factor is read for its largest magnitude, and read and
// rounded: 5 bytes an element, in a backward also the output's gradient, in both its products.
TEST(Price, ProductsOfEightBitsTakeTheirSpeedAndTheTimeOfRounding) {
  hardware::Profile profile = of_roofline();
  const Passes wide = mlp_s(model::Precision::bf16, profile);
  const double flops = 2.0 * 2.0 * 64 * 64 * 256;
  const double inputs = 64 * 64 + 64 * 256, weights = 2.0 * 64 * 256, outputs = 64 * 256 + 64 * 64;
  const double forward_s = 5.0 * (inputs + weights) / 1e11;
  const double backward_s = 5.0 * (inputs + weights + 2.0 * outputs) / 1e11;
  const Passes unknown = mlp_s(model::Precision::fp8, profile);
  EXPECT_NEAR(unknown.forward_s - wide.forward_s, forward_s, 1e-15);
  EXPECT_NEAR(unknown.backward_s - wide.backward_s, backward_s, 1e-15);
  profile.fp8_flops_per_s = 4e12;
  const Passes known = mlp_s(model::Precision::fp8, profile);
  EXPECT_NEAR(unknown.forward_s - known.forward_s, 0.75 * flops / 1e12, 1e-15);
  EXPECT_NEAR(unknown.backward_s - known.backward_s, 0.75 * 2.0 * flops / 1e12, 1e-15);
}

TEST(Price, MeasuredProductsOfEightBitsAreTheirRows) {
  hardware::Profile profile = of_roofline();
  const double none_s = mlp_s(model::Precision::fp8, profile).forward_s;
  profile.operators = {{"matmul_fp8", {64, 256, 64}, 1.0, 2.0},
                       {"matmul_fp8", {64, 64, 256}, 3.0, 4.0}};
  const Passes measured = mlp_s(model::Precision::fp8, profile);
  EXPECT_NEAR(measured.forward_s, 4.0, 2.0 * none_s);
  EXPECT_NEAR(measured.backward_s, 6.0, 6.0 * none_s);
  EXPECT_LT(mlp_s(model::Precision::bf16, profile).forward_s, none_s);  // other products
}

/// A layer's MLP in bf16: 2 x 32 tokens, a norm of 64, gelu of 256.
double mlp_backward_s(const hardware::Profile& profile, Pass pass) {
  const model::Config model{.num_layers = 2,
                            .hidden_size = 64,
                            .num_heads = 4,
                            .ffn_size = 256,
                            .seq_len = 32,
                            .vocab_size = 100,
                            .precision = model::Precision::bf16};
  return segment_s(model, profile, model::SegmentKind::mlp, pass, {.microbatch = 2});
}

// The norm was measured; of gelu, which goes with its product, the forward takes nothing: a copy.
TEST(Price, AStoredBackwardMakesNothingAgain) {
  hardware::Profile profile = of_roofline();
  profile.operators = {{"layer_norm", {64, 64}, 3e-6, 8e-6}, {"gelu", {64, 256}, 1e-12, 5e-6}};
  const double copy_s = 2.0 * 2.0 * 64 * 256 / 1e11;
  const double saved_s =
      mlp_backward_s(profile, Pass::backward) - mlp_backward_s(profile, Pass::stored_backward);
  EXPECT_NEAR(saved_s, 3e-6 + copy_s, 1e-15);
  profile.operators[0].backward_s = 1e-6;  // no less than nothing is left
  EXPECT_NEAR(
      mlp_backward_s(profile, Pass::backward) - mlp_backward_s(profile, Pass::stored_backward),
      1e-6 + copy_s, 1e-15);
}

// FLOPs at the speed of a prompt, or keys and values at that of single tokens.
TEST(Price, AttentionToKeptKeysHasRowsOfPromptsAndOfTokens) {
  hardware::Profile profile;
  profile.flops_per_s = profile.bytes_per_s = 1e12;
  // {N, T, heads, D}: 4 N T heads D FLOPs; 2 N heads D (T / 2 + 1) values of 4 bytes, of which two
  // heads share a key.
  profile.operators = {{.kind = "cached_attention", .dims = {512, 256, 4, 8}, .forward_s = 1e-3},
                       {.kind = "cached_attention", .dims = {16, 256, 4, 8}, .forward_s = 2e-3}};
  model::Config model{.family = &model::family("llama"),
                      .num_layers = 1,
                      .hidden_size = 32,
                      .num_heads = 4,
                      .num_kv_heads = 2,
                      .ffn_size = 64,
                      .seq_len = 256,
                      .vocab_size = 96};
  const auto seconds = [&](int tokens, int sequences) {
    return cached_attention_s(
        model::generating(model, {.tokens = tokens, .sequences = sequences, .blocks = 1}), profile,
        model::SegmentKind::attention, {});
  };
  EXPECT_NEAR(seconds(16, 16), 2e-3, 1e-12);
  EXPECT_NEAR(seconds(8, 8), 1e-3, 1e-12);
  EXPECT_NEAR(seconds(512, 1), 1e-3, 1e-12);
  EXPECT_NEAR(seconds(1024, 1), 2e-3, 1e-12);
}

// 2 x 32 tokens go to 2 of 8 experts each: 128 copies, 16 a matrix. Ranks with whole experts have
// 2 matrices of as many rows; the most loaded one is expected to have half as many rows more.
TEST(Price, WholeExpertsHaveTheRowsOfTheMostLoadedRank) {
  model::Config model{.family = &model::family("llama"),
                      .num_layers = 2,
                      .hidden_size = 64,
                      .num_heads = 4,
                      .num_experts = 8,
                      .experts_per_token = 2,
                      .expert_ffn_size = 32,
                      .rank_load_factor = 1.5,
                      .seq_len = 32,
                      .vocab_size = 100,
                      .precision = model::Precision::bf16};
  using Dims = std::vector<std::int64_t>;
  const auto dims = [&](int tp, int ep) {
    const model::Segment segment = model::segment(model, model::SegmentKind::experts);
    const auto in = std::ranges::find(segment.operators, "in", &model::Operator::name);
    Dims found;
    for (const model::Expr& dim : in->dims)
      found.push_back(
          std::llround(dim.evaluate(model::Split{.tp = tp, .microbatch = 2, .ep = ep}.values())));
    return found;
  };
  EXPECT_EQ(dims(1, 1), (Dims{128, 64, 64, 8}));
  EXPECT_EQ(dims(4, 1), (Dims{128, 16, 64, 8}));
  EXPECT_EQ(dims(4, 4), (Dims{48, 64, 64, 2}));
  model.rank_load_factor =
      100.0;  // no rank can have more than a copy for each expert that it holds
  EXPECT_EQ(dims(8, 8), (Dims{64, 64, 64, 1}));
}

}  // namespace
}  // namespace brume::price
