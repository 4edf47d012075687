#include "mist/case.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.hpp"
#include "interop/mist.hpp"
#include "mist/deck.hpp"
#include "mist_cases.hpp"

namespace brume::mist {
namespace {

constexpr double gib = 1024.0 * 1024.0 * 1024.0;

model::Config config_of(const Expectation& e) {
  const Model& m = e.mist.model;
  int layers = 0;
  for (const Stage& stage : e.mist.stages) layers += stage.layers;
  const char* const family = m.gated ? "llama" : m.parallel ? "falcon" : "gpt";
  return {.family = &model::family(family),
          .num_layers = layers,
          .hidden_size = int(m.hidden),
          .num_heads = int(m.heads),
          .ffn_size = int(m.ffn),
          .seq_len = int(m.sequence),
          .vocab_size = int(m.vocab)};
}

/// The shipped operator times that the case was counted with, and its own links and slowdowns.
hardware::Profile profile_of(const Expectation& e) {
  const std::string name = e.operators.starts_with("l4_old") ? "l4-backup"
                           : e.operators.starts_with("l4")   ? "l4"
                                                             : "synthetic";
  const Hardware& hardware = e.mist.hardware;
  interop::MistMachine machine;
  for (const auto& row : hardware.links)
    for (const Link& link : row)
      machine.links.insert(machine.links.end(), {link.gib_per_s, link.latency_s});
  machine.copy_in = {hardware.copy_in.gib_per_s, hardware.copy_in.latency_s};
  machine.copy_out = {hardware.copy_out.gib_per_s, hardware.copy_out.latency_s};
  machine.slowdowns.assign(hardware.slowdowns.begin(), hardware.slowdowns.end());
  hardware::Profile profile = hardware::load_profile(name);
  interop::set_machine(profile, machine, e.name);
  return profile;
}

Case rebuilt(const Expectation& e) {
  const plan::Plan plan = plan_of(e.mist);
  const Strategy ends = ends_of(plan, true);
  const bool data_parallel = ends.dp == e.mist.ends.dp && ends.tp == e.mist.ends.tp;
  const auto memory = std::int64_t(e.mist.hardware.memory_gib * gib);
  return case_of(plan, config_of(e), profile_of(e), hardware::NodeGroup{.memory_bytes = memory},
                 {.plain_attention = !e.mist.model.flash, .ends_data_parallel = data_parallel});
}

/// All plans for which there is what Mist prints, through our plan, model and profile.
class MistPlansOfOurs : public testing::TestWithParam<Expectation> {};

TEST_P(MistPlansOfOurs, CountAsPrinted) {
  const analyzer::Prediction ours = described(rebuilt(GetParam()));
  const Prediction& printed = GetParam().printed;
  EXPECT_NEAR(ours.iteration_s, printed.iteration_s, 1e-9 * printed.iteration_s);
  ASSERT_EQ(ours.stages.size(), printed.stages.size());
  for (std::size_t i = 0; i < ours.stages.size(); ++i) {
    const StagePrediction& theirs = printed.stages[i];
    EXPECT_NEAR(ours.stages[i].time.stable_s(), theirs.stable_s, 1e-9 * theirs.stable_s) << i;
    EXPECT_NEAR(ours.stages[i].time.delta_s(), theirs.delta_s, 1e-9 * theirs.delta_s + 1e-12) << i;
    const double mib = 1024.0 * 1024.0;
    EXPECT_NEAR(double(ours.stages[i].peak_forward_bytes), theirs.peak_forward_mib * mib, 64) << i;
    EXPECT_NEAR(double(ours.stages[i].peak_backward_bytes), theirs.peak_backward_mib * mib, 64)
        << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Mist, MistPlansOfOurs, testing::ValuesIn(expectations()),
                         [](const auto& named) {
                           std::string name = named.param.name;
                           for (char& c : name)
                             if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
                           return name;
                         });

Expectation quick_test() {
  for (Expectation& e : expectations())
    if (e.name.starts_with("A01")) return e;
  throw Error(Failure::bug, "no quick test");
}

TEST(MistPlans, AreIn1F1B) {
  for (int plan::Order::*knob : {&plan::Order::run_ahead, &plan::Order::zero_bubble}) {
    plan::Plan plan = plan_of(quick_test().mist);
    ++(plan.order.*knob);
    EXPECT_THROW(case_of(plan, config_of(quick_test()), profile_of(quick_test()),
                         hardware::NodeGroup{.memory_bytes = 1 << 30}, {}),
                 Error);
  }
}

// Every operator of the quick test was measured; at microbatch 3 none was, but all lie between 2
// and 4 in one dimension.
TEST(MistOperatorPrices, MeasuredElseInterpolatedElseRoofline) {
  const Expectation e = quick_test();
  const hardware::Profile profile = hardware::load_profile("l4");
  const auto count = [&](int microbatch, int tp, hardware::Source source) {
    int found = 0;
    for (const price::OperatorPrice& p :
         operator_prices(e.mist.model, profile, Layer::block, microbatch, tp))
      found += p.forward.source == source;
    return found;
  };
  using enum hardware::Source;
  EXPECT_EQ(count(8, 1, interpolated) + count(8, 1, roofline), 0);
  EXPECT_EQ(count(3, 1, roofline), 0);
  EXPECT_GT(count(3, 1, interpolated), 8);
  EXPECT_GT(count(8, 2, roofline), 0);
}

// 10 ms of product at the data sheet's rate take 10 / 0.6 ms.
TEST(MistOperatorPrices, DataSheetTimesEfficiency) {
  const hardware::Profile a100 = hardware::load_profile("a100-40");
  const std::int64_t dims[] = {1024, 1024, 1024};
  const auto time = hardware::operator_time(a100, "matmul", dims, false, 3.12e12, 0.0);
  EXPECT_NEAR(time.seconds, 10e-3 / 0.6, 1e-9);
  EXPECT_EQ(time.source, hardware::Source::roofline);
}

// Without the 28 factors: sigma_C of {C, N, H} is 1 + a[C][N] + a[C][H].
TEST(Hardware, SlowdownsFollowFromPairs) {
  hardware::Profile profile = hardware::load_profile("l4");
  profile.slowdowns.clear();
  profile.interference = {0, 1, 2, 3, 4, 0, 5, 6, 7, 8, 0, 9, 10, 11, 12, 0};
  const Hardware hardware = hardware_of(profile, {});
  EXPECT_EQ(hardware.slowdowns[0], 1.0 + 1 + 2 + 3);
  EXPECT_EQ(hardware.slowdowns[4], 1.0 + 1 + 2);
  EXPECT_EQ(hardware.slowdowns[16], 1.0 + 1);
  EXPECT_EQ(hardware.slowdowns[27], 1.0 + 12);
}

TEST(Hardware, NeedsTransfers) {
  hardware::Profile profile = hardware::load_profile("l4");
  std::erase_if(profile.transfers, [](const auto& row) { return row.kind == "copy_out"; });
  EXPECT_THROW(hardware_of(profile, {}), Error);
  profile.transfers.clear();
  EXPECT_THROW(hardware_of(profile, {}), Error);
}

}  // namespace
}  // namespace brume::mist
