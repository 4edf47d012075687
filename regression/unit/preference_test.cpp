#include "engine/preference.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/error.hpp"

namespace brume::engine {
namespace {

using Scores = std::vector<SequenceScore>;

/// Log-probabilities like those of answers of a few tokens.
Scores random_scores(int pairs, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> near(-4.0, 4.0);
  Scores scores;
  for (int i = 0; i < 2 * pairs; ++i) {
    const double reference = -20.0 + near(random);
    scores.push_back({reference + near(random), reference, 1 + std::int64_t(random() % 30)});
  }
  return scores;
}

TEST(Preference, IsLogTwoWhereTheWeightsAreTheInitialOnes) {
  const Scores scores{{-30.0, -30.0, 4}, {-7.0, -7.0, 2}, {-1.5, -1.5, 1}, {-80.0, -80.0, 9}};
  const PreferenceResult result = prefer({.beta = 0.3}, scores);
  EXPECT_DOUBLE_EQ(result.loss, std::log(2.0));
  EXPECT_EQ(result.accuracy, 0.0);  // none is above the other
  EXPECT_EQ(result.margin, 0.0);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_DOUBLE_EQ(result.factors[i], (i % 2 == 0 ? 0.5 : -0.5) * 0.3 / 2.0);
}

TEST(Preference, HasTheClosedFormsOfItsLosses) {
  const Scores scores{{-10.0, -12.0, 4}, {-9.0, -8.0, 5}, {-3.0, -2.5, 1}, {-6.0, -6.25, 2}};
  const double h[] = {0.1 * 3.0, 0.1 * -0.75};
  const auto log_sigmoid = [](double x) { return -std::log1p(std::exp(-x)); };
  const PreferenceResult plain = prefer({}, scores);
  EXPECT_NEAR(plain.loss, -(log_sigmoid(h[0]) + log_sigmoid(h[1])) / 2.0, 1e-15);
  EXPECT_EQ(plain.accuracy, 0.5);
  EXPECT_NEAR(plain.margin, (h[0] + h[1]) / 2.0, 1e-15);
  const PreferenceResult smooth = prefer({.label_smoothing = 0.2}, scores);
  EXPECT_NEAR(smooth.loss,
              -(0.8 * (log_sigmoid(h[0]) + log_sigmoid(h[1])) +
                0.2 * (log_sigmoid(-h[0]) + log_sigmoid(-h[1]))) /
                  2.0,
              1e-15);
  const PreferenceResult ipo = prefer({.loss = PreferenceLoss::ipo}, scores);
  const double off[] = {2.0 / 4.0 + 1.0 / 5.0 - 5.0, -0.5 - 0.25 / 2.0 - 5.0};
  EXPECT_NEAR(ipo.loss, (off[0] * off[0] + off[1] * off[1]) / 2.0, 1e-13);
  EXPECT_NEAR(ipo.margin, plain.margin, 1e-15);
}

TEST(Preference, FactorsAreItsDerivatives) {
  const Preference all[] = {{.beta = 0.1},
                            {.beta = 2.0},
                            {.beta = 0.7, .label_smoothing = 0.3},
                            {.beta = 0.1, .loss = PreferenceLoss::ipo}};
  constexpr double step = 1e-5;
  for (const Preference& preference : all) {
    Scores scores = random_scores(5, 7);
    const std::vector<double> factors = prefer(preference, scores).factors;
    for (std::size_t i = 0; i < scores.size(); ++i) {
      const double before = scores[i].policy;
      scores[i].policy = before - step;
      const double up = prefer(preference, scores).loss;
      scores[i].policy = before + step;
      const double down = prefer(preference, scores).loss;
      scores[i].policy = before;
      EXPECT_NEAR(factors[i], (up - down) / (2.0 * step), 1e-7) << i;
    }
  }
}

// A ratio of probabilities may be beyond what an exponential can hold.
TEST(Preference, StaysFiniteFarFromTheInitialWeights) {
  for (const double far : {1e4, -1e4}) {
    const PreferenceResult result = prefer({.beta = 1.0}, Scores{{far, 0.0, 1}, {0.0, 0.0, 1}});
    EXPECT_DOUBLE_EQ(result.loss, far > 0.0 ? 0.0 : 1e4);
    EXPECT_DOUBLE_EQ(result.factors[0], far > 0.0 ? 0.0 : 1.0);
    EXPECT_EQ(result.accuracy, far > 0.0 ? 1.0 : 0.0);
  }
}

TEST(Preference, ShowsThatAnAnswerIsNotFinite) {
  EXPECT_TRUE(std::isnan(prefer({}, Scores{{NAN, -1.0, 1}, {-1.0, -1.0, 1}}).loss));
}

TEST(Preference, RefusesWhatIsNoPair) {
  EXPECT_THROW(prefer({}, {}), Error);
  EXPECT_THROW(prefer({}, Scores(3)), Error);
  EXPECT_THROW(preference_loss("hinge"), Error);
}

}  // namespace
}  // namespace brume::engine
