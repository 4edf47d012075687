#include "mist/counting.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.hpp"
#include "mist_cases.hpp"

namespace brume::mist {
namespace {

constexpr double mib = 1024.0 * 1024.0;

void expect_close(double ours, double theirs, double relative, const std::string& what) {
  EXPECT_NEAR(ours, theirs, relative * std::abs(theirs) + 1e-12) << what;
}

/// One that is printed among the cases, by the start of its name.
Expectation expectation(const std::string& start) {
  for (Expectation& e : expectations())
    if (e.name.starts_with(start)) return e;
  throw Error(Failure::bug, "no case {}", start);
}

struct Together {
  std::array<double, 4> alone_ms;
  double l4_ms;
  double a100_ms;
};

TEST(MistInterference, FollowsTheFluidModel) {
  const auto hardware = hardware_by_name();
  for (const auto& [alone_ms, l4_ms, a100_ms] :
       {Together{{10, 5, 4, 3}, 15.231502, 12.414381},
        Together{{10, 0, 4, 0}, 10.059920, 10.032458},
        Together{{10, 20, 0, 3}, 20.638906, 23.469024}, Together{{0, 5, 4, 3}, 9.440334, 9.228646},
        Together{{2, 10, 30, 30}, 56.806959, 47.903782}}) {
    std::array<double, 4> alone_s{};
    for (std::size_t q = 0; q < 4; ++q) alone_s[q] = 1e-3 * alone_ms[q];
    expect_close(1e3 * overlapped_s(hardware.at("l4").slowdowns, alone_s), l4_ms, 1e-6, "L4");
    expect_close(1e3 * overlapped_s(hardware.at("a100").slowdowns, alone_s), a100_ms, 1e-6, "A100");
  }
}

double sampled_s(const std::string& kind, const Hardware& hardware, std::istringstream& line) {
  if (kind == "together") {
    std::array<double, 4> alone_s{};
    for (double& s : alone_s) line >> s;
    return overlapped_s(hardware.slowdowns, alone_s);
  }
  double gib = 0.0;
  int nodes = 0, ranks = 0;
  line >> gib >> nodes >> ranks;
  if (kind == "copy_in") return copy_s(hardware.copy_in, gib);
  if (kind == "send") return send_s(hardware, gib, nodes > 1);
  const Collective collective = kind == "all_gather"       ? Collective::all_gather
                                : kind == "reduce_scatter" ? Collective::reduce_scatter
                                                           : Collective::all_reduce;
  return collective_s(hardware, collective, gib, nodes, ranks);
}

TEST(MistSamples, InterferenceAndCommunicationAreAsPrinted) {
  const Hardware hardware = hardware_by_name().at("l4");
  int samples = 0;
  for (std::istringstream& line : data_lines("analyzer_samples.csv")) {
    std::string kind;
    line >> kind;
    const double ours = sampled_s(kind, hardware, line);
    double printed = 0.0;
    ASSERT_TRUE(line >> printed);
    expect_close(ours, printed, 1e-9, kind + " " + std::to_string(++samples));
  }
  EXPECT_EQ(samples, 65);
}

TEST(MistCollectives, GroupsArePowersOfTwo) {
  const Hardware hardware = hardware_by_name().at("l4");
  EXPECT_THROW(collective_s(hardware, Collective::all_gather, 1.0, 1, 3), Error);
  EXPECT_EQ(collective_s(hardware, Collective::all_gather, 1.0, 1, 1), 0.0);
}

// The published prediction of its quick test.
TEST(Case, QuickTest) {
  const Expectation e = expectation("A01");
  EXPECT_NEAR(e.mist.stages[0].block.forward_s, 52.350055e-3, 1e-9);
  EXPECT_NEAR(e.mist.stages[0].block.backward_s, 101.591552e-3, 1e-9);
  EXPECT_NEAR(e.mist.embedding.forward_s, 0.873472e-3, 1e-9);
  EXPECT_NEAR(e.mist.head.backward_s, 136.2863e-3, 1e-7);
  const Prediction ours = predict(e.mist);
  expect_close(ours.iteration_s, 10.659405382, 1e-9, "total");
  expect_close(ours.stages[0].stable_s, 5.223716811, 1e-9, "t");
  expect_close(ours.stages[0].delta_s, 0.211971761, 1e-8, "d");
  EXPECT_EQ(ours.stages[0].peak_forward_mib, 19255.25);
  EXPECT_EQ(ours.stages[0].peak_backward_mib, 19503.125 + 6.0 / mib);
}

// 6 bytes: the softmax's constant and the loss.
TEST(Case, BytesOfTheQuickTest) {
  const Model model = expectation("A01").mist.model;
  const LayerBytes block = block_bytes(model, 8, 1);
  EXPECT_EQ(block.weights / mib, 96.015625);
  EXPECT_EQ(block.scores / mib, 1024.0);
  EXPECT_EQ(block.output / mib, 64.0);
  EXPECT_EQ(block.backward_peak / mib, 3456.125 + 4.0 / mib);
  EXPECT_EQ(head_bytes(model, 8, 1).forward_peak / mib, 3208.296875);
  EXPECT_EQ(head_bytes(model, 8, 1).saved / mib, 1636.171875);
  EXPECT_EQ(embedding_bytes(model, 8).saved / mib, 0.125);
}

TEST(Case, Pipelines) {
  const auto total = [](const char* name) { return predict(expectation(name).mist); };
  const Prediction tuned = total("A02");
  expect_close(tuned.iteration_s, 9.268924458, 1e-9, "tuned");
  expect_close(tuned.stages[0].stable_s, 0.545545267, 1e-8, "first stage");
  expect_close(tuned.stages[1].stable_s, 0.540200178, 1e-8, "last stage");
  EXPECT_EQ(tuned.stages[0].delta_s, 0.0);
  expect_close(total("A12").iteration_s, 6.697987041, 1e-9, "flash");
  expect_close(total("A11").iteration_s, 9.606076220, 1e-9, "one sequence a microbatch");
}

// Bytes of one block as its analyzer prints them for single layers.
TEST(MistBytes, Families) {
  Model llama{.gated = true, .hidden = 4096, .ffn = 11008, .heads = 32};
  EXPECT_EQ(block_bytes(llama, 1, 1).weights, 16384.0 + 404750336.0);
  EXPECT_EQ(block_bytes(llama, 2, 1).saved, 2 * (67141632.0 + 470810624.0) + 4);
  EXPECT_EQ(block_bytes(llama, 2, 4).forward_peak, 2 * (100696064.0 + 470810624.0 / 4) + 4);
  EXPECT_EQ(block_bytes(llama, 2, 1).backward_peak, 2 * (50348032.0 + 855638016.0) + 4);
  llama.flash = true;
  EXPECT_EQ(block_bytes(llama, 2, 2).backward_peak, 2 * (83918848.0 + 292814848.0 / 2) + 16);
  EXPECT_EQ(block_bytes(llama, 2, 8).backward_peak, 2 * (100696064.0 + 247726080.0 / 8) + 16);

  Model falcon{.parallel = true, .hidden = 4096, .ffn = 16384, .heads = 32};
  EXPECT_EQ(block_bytes(falcon, 3, 2).weights, 16384.0 + 402653184.0 / 2);
  EXPECT_EQ(block_bytes(falcon, 2, 2).saved, 2 * (33570816.0 + 469762048.0 / 2) + 4);
  EXPECT_EQ(block_bytes(falcon, 2, 1).forward_peak, 2 * (33570816.0 + 620756992.0) + 4);
  EXPECT_EQ(block_bytes(falcon, 2, 1).backward_peak, 2 * (67125248.0 + 989855744.0) + 4);
  falcon.flash = true;
  EXPECT_EQ(block_bytes(falcon, 2, 8).backward_peak, 2 * (83902464.0 + 201326592.0 / 8));
}

TEST(MistMemory, MarginAndCapacity) {
  const Expectation e = expectation("B03");
  const Prediction ours = predict(e.mist);
  const std::vector<double> needed{20520.3, 20499.2, 19797.2, 20379.1};
  for (std::size_t i = 0; i < needed.size(); ++i)
    EXPECT_NEAR(ours.stages[i].needed_mib, needed[i], 0.06) << "stage " << i;
  EXPECT_NEAR(usable_mib(e.mist.hardware), 20264.4, 0.06);
}

TEST(Case, RefusesStagesThatCannotBe) {
  Case mist = expectation("A01").mist;
  mist.stages[0].recomputed = 25;
  EXPECT_THROW(predict(mist), Error);
  mist.stages.clear();
  EXPECT_THROW(predict(mist), Error);
}

/// Every plan that the original was asked for: t, d, both peaks and the total.
class MistPlans : public testing::TestWithParam<Expectation> {};

TEST_P(MistPlans, AsPrinted) {
  const Prediction ours = predict(GetParam().mist);
  const Prediction& printed = GetParam().printed;
  expect_close(ours.iteration_s, printed.iteration_s, 1e-9, "total");
  ASSERT_EQ(ours.stages.size(), printed.stages.size());
  for (std::size_t i = 0; i < ours.stages.size(); ++i) {
    const std::string stage = "stage " + std::to_string(i);
    expect_close(ours.stages[i].stable_s, printed.stages[i].stable_s, 1e-9, stage + " t");
    expect_close(ours.stages[i].delta_s, printed.stages[i].delta_s, 1e-9, stage + " d");
    expect_close(ours.stages[i].peak_forward_mib, printed.stages[i].peak_forward_mib, 1e-9,
                 stage + " forward");
    expect_close(ours.stages[i].peak_backward_mib, printed.stages[i].peak_backward_mib, 1e-9,
                 stage + " backward");
  }
}

INSTANTIATE_TEST_SUITE_P(Mist, MistPlans, testing::ValuesIn(expectations()), [](const auto& named) {
  std::string name = named.param.name;
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return name;
});

TEST(MistCases, ThereAre37) { EXPECT_EQ(expectations().size(), 37U); }

}  // namespace
}  // namespace brume::mist
