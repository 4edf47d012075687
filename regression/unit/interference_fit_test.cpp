#include "hardware/interference_fit.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/error.hpp"
#include "co_runs.hpp"
#include "hardware/profile.hpp"

namespace brume::hardware {
namespace {

using Times = std::array<double, num_resources>;

/// What the model says when these start together.
CoRun simulate(const Interference& model, const Times& alone_s) {
  return {alone_s, model.overlapped_s(alone_s), model.done_s(alone_s)};
}

/// Co-runs of all pairs, of different lengths.
std::vector<CoRun> simulate_pairs(const Interference& model) {
  std::vector<CoRun> runs;
  for (int q = 0; q < num_resources; ++q)
    for (int j = q + 1; j < num_resources; ++j)
      for (double ratio : {0.5, 1.0, 1.7}) {
        Times alone_s{};
        alone_s[q] = 0.03;
        alone_s[j] = 0.03 * ratio;
        runs.push_back(simulate(model, alone_s));
      }
  return runs;
}

/// The same co-runs, of which only the end is known.
std::vector<CoRun> without_done(std::vector<CoRun> runs) {
  for (CoRun& run : runs) run.done_s = {};
  return runs;
}

Interference known_model() {
  Interference model;
  std::mt19937 random(5);
  std::uniform_real_distribution<double> added(0.0, 3.0);
  for (int q = 0; q < num_resources; ++q)
    for (int j = 0; j < num_resources; ++j) model.added[q][j] = q == j ? 0.0 : added(random);
  return model;
}

void expect_near(const Interference& fitted, const Interference& model, double tolerance) {
  for (int q = 0; q < num_resources; ++q)
    for (int j = 0; j < num_resources; ++j)
      EXPECT_NEAR(fitted.added[q][j], model.added[q][j], tolerance) << q << " beside " << j;
}

TEST(InterferenceFit, RecoversTheModelThatMadeTheTimes) {
  expect_near(fit_interference(simulate_pairs(known_model())), known_model(), 1e-9);
}

TEST(InterferenceFit, RecoversTheModelFromEndsOnly) {
  std::mt19937 random(9);
  std::uniform_real_distribution<double> time_s(0.0, 1.0);
  std::vector<CoRun> runs;
  for (int i = 0; i < 400; ++i) {
    Times alone_s;
    for (double& t : alone_s) t = time_s(random);
    if (i % 4 != 0) alone_s[std::size_t(i / 4 % num_resources)] = 0.0;
    if (i % 4 == 3) alone_s[std::size_t((i / 4 + 1 + i / 16 % 3) % num_resources)] = 0.0;
    runs.push_back(simulate(known_model(), alone_s));
  }
  expect_near(fit_interference(without_done(runs)), known_model(), 1e-6);
}

TEST(InterferenceFit, NoiseOfAFewPercentStaysThatSmall) {
  const Interference model = known_model();
  std::mt19937 random(6);
  std::uniform_real_distribution<double> noise(0.98, 1.02);
  std::vector<CoRun> runs;
  for (int i = 0; i < 50; ++i)
    for (CoRun run : simulate_pairs(model)) {
      const double factor = noise(random);
      run.together_s *= factor;
      for (double& done_s : run.done_s) done_s *= factor;
      runs.push_back(run);
    }
  const Interference fitted = fit_interference(runs);
  for (int q = 0; q < num_resources; ++q)
    for (int j = 0; j < num_resources; ++j)
      EXPECT_NEAR((1.0 + fitted.added[q][j]) / (1.0 + model.added[q][j]), 1.0, 0.05);
}

// Three at once that take longer than pairs explain: the fit gives way towards them.
TEST(InterferenceFit, LearnsFromMoreThanPairs) {
  Interference model;
  for (int q = 0; q < num_resources; ++q)
    for (int j = 0; j < num_resources; ++j) model.added[q][j] = q == j ? 0.0 : 0.5;
  std::vector<CoRun> runs = simulate_pairs(model);
  CoRun three;
  three.alone_s = {1.0, 1.0, 1.0, 0.0};
  const double by_pairs_s = model.overlapped_s(three.alone_s);
  three.together_s = 1.5 * by_pairs_s;
  three.done_s = {three.together_s, three.together_s, three.together_s, 0.0};
  runs.insert(runs.end(), 20, three);

  for (const std::vector<CoRun>& known : {runs, without_done(runs)}) {
    const double fitted_s = fit_interference(known).overlapped_s(three.alone_s);
    EXPECT_GT(fitted_s, 1.25 * by_pairs_s);
    EXPECT_LE(fitted_s, 1.55 * by_pairs_s);
  }
}

// Two slowdowns 2 and 4: sum 1/s = 3/4, sum 1/s^2 = 5/16, so 1 + a = 12/5.
TEST(InterferenceFit, ErrorsAreRelative) {
  CoRun twice, four_times;
  twice.alone_s = four_times.alone_s = {1.0, 0.0, 8.0, 0.0};
  twice.together_s = four_times.together_s = 9.0;
  twice.done_s = {2.0, 0.0, 9.0, 0.0};
  four_times.done_s = {4.0, 0.0, 9.0, 0.0};
  EXPECT_NEAR(fit_interference(std::vector{twice, four_times}).added[0][2], 1.4, 1e-6);
}

TEST(InterferenceFit, ASpeedUpIsNoInterference) {
  CoRun run;
  run.alone_s = {1.0, 1.0, 0.0, 0.0};
  run.together_s = 0.95;
  run.done_s = {0.9, 0.95, 0.0, 0.0};
  const Interference fitted = fit_interference(std::vector{run});
  EXPECT_EQ(fitted.added[0][1], 0.0);
  EXPECT_EQ(fitted.added[1][0], 0.0);
}

TEST(InterferenceFit, NothingMeasuredIsNoInterference) {
  for (const auto& row : fit_interference({}).added)
    for (double added : row) EXPECT_EQ(added, 0.0);
}

TEST(InterferenceFit, RefusesWhatIsNoCoRun) {
  const CoRun alone{{0.0, 1.0, 0.0, 0.0}, 1.0, {}};
  const CoRun endless{{1.0, 1.0, 0.0, 0.0}, 0.0, {}};
  const CoRun backwards{{1.0, 1.0, -1.0, 0.0}, 2.0, {}};
  for (const CoRun& run : {alone, endless, backwards})
    EXPECT_THROW(fit_interference(std::vector{run}), Error);
}

// --- measured on GPUs ---------------------------------------------------------------------------

class MeasuredCoRuns : public ::testing::TestWithParam<std::pair<const char*, double>> {};

// Mist's own factors are 11 % (L4) and 10 % (A100) off.
TEST_P(MeasuredCoRuns, FitPredictsTheHalfThatItHasNotSeen) {
  const auto& [machine, bound] = GetParam();
  const auto all = test::read_co_runs(BRUME_REGRESSION_DIR "/data/mist/co_runs.csv");
  const auto [train, held_out] = test::halves(all.at(machine), 0);
  const test::Models better = test::fit_better(train);
  EXPECT_LE(test::mean_error(better, held_out), bound);
  EXPECT_LE(test::mean_error(better, held_out),
            test::mean_error(test::fit_pooled(train), held_out));
}

INSTANTIATE_TEST_SUITE_P(Machines, MeasuredCoRuns,
                         ::testing::Values(std::pair{"l4", 0.025}, std::pair{"a100", 0.08}));

// Tables of the profile are rounded to four digits.
TEST(InterferenceFit, ProfileOfTheA100HasTheTablesOfItsCoRuns) {
  const auto all = test::read_co_runs(BRUME_REGRESSION_DIR "/data/mist/co_runs.csv");
  const Profile profile = load_profile("a100-40");
  const test::Models fitted = test::fit_better(all.at("a100"));
  EXPECT_EQ(profile.group_interference.size(), fitted.size());
  for (const auto& [shape, model] : fitted)
    expect_near(profile.interference_model(shape.first, shape.second), model, 1e-4);
}

}  // namespace
}  // namespace brume::hardware
