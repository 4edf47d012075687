#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include "base/error.hpp"
#include "hardware/profile.hpp"

namespace brume::hardware {
namespace {

using Times = std::array<double, num_resources>;

Interference with(int q, int j, double slower_q, double slower_j) {
  Interference model;
  model.added[q][j] = slower_q;
  model.added[j][q] = slower_j;
  return model;
}

TEST(Interference, LoneTaskRunsAtFullSpeed) {
  const Interference model = with(0, 1, 0.7, 0.4);
  EXPECT_DOUBLE_EQ(model.overlapped_s({3.0, 0.0, 0.0, 0.0}), 3.0);
  EXPECT_DOUBLE_EQ(model.overlapped_s({0.0, 0.0, 0.0, 2.0}), 2.0);
}

TEST(Interference, NothingTakesNoTime) {
  EXPECT_DOUBLE_EQ(Interference{}.overlapped_s({0.0, 0.0, 0.0, 0.0}), 0.0);
}

TEST(Interference, WithoutSlowdownTheLongestDecides) {
  EXPECT_DOUBLE_EQ(Interference{}.overlapped_s({1.0, 4.0, 2.0, 3.0}), 4.0);
}

// Both end together, (1 + a) later than alone.
TEST(Interference, TwoEqualTasksStretchAlike) {
  EXPECT_DOUBLE_EQ(with(0, 1, 0.25, 0.25).overlapped_s({2.0, 2.0, 0.0, 0.0}), 2.5);
}

// Phase 1: task 0 takes 2 * 1.5 = 3 s, in which task 2 does 3 / 1.25 = 2.4 of its 5 s; then 2.6 s
// alone.
TEST(Interference, SurvivorFinishesAtFullSpeed) {
  EXPECT_NEAR(with(0, 2, 0.5, 0.25).overlapped_s({2.0, 0.0, 5.0, 0.0}), 5.6, 1e-12);
}

// a = 1 both ways is taking turns: the sum of both.
TEST(Interference, FullSlowdownSerializes) {
  EXPECT_NEAR(with(1, 3, 1.0, 1.0).overlapped_s({0.0, 2.0, 0.0, 3.0}), 5.0, 1e-12);
}

Interference random_model(std::mt19937& random) {
  std::uniform_real_distribution<double> slower(0.0, 2.0);
  Interference model;
  for (auto& row : model.added)
    for (double& added : row) added = slower(random);
  return model;
}

TEST(Interference, MoreWorkNeverEndsEarlier) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> time_s(0.0, 1.0);
  for (int trial = 0; trial < 2000; ++trial) {
    const Interference model = random_model(random);
    Times alone_s;
    for (double& t : alone_s) t = trial % 3 == 0 && time_s(random) < 0.3 ? 0.0 : time_s(random);
    const double before_s = model.overlapped_s(alone_s);
    alone_s[std::size_t(trial) % num_resources] += time_s(random);
    EXPECT_GE(model.overlapped_s(alone_s), before_s - 1e-12);
  }
}

TEST(Interference, LiesBetweenLongestAndSlowestSum) {
  std::mt19937 random(8);
  std::uniform_real_distribution<double> time_s(0.0, 1.0);
  for (int trial = 0; trial < 500; ++trial) {
    const Interference model = random_model(random);
    Times alone_s;
    double sum_s = 0.0;
    for (double& t : alone_s) sum_s += t = time_s(random);
    EXPECT_GE(model.overlapped_s(alone_s), *std::ranges::max_element(alone_s));
    EXPECT_LE(model.overlapped_s(alone_s), 7.0 * sum_s);  // each at most 1 + 3 * 2 slower
  }
}

TEST(Interference, TableNeedsSixteenNumbers) {
  Profile profile;
  profile.interference.pop_back();
  EXPECT_THROW(profile.interference_model(), Error);
}

TEST(Interference, TheNearestGroupsTableCounts) {
  Profile profile;
  const auto table = [](double value) { return std::vector<double>(16, value); };
  profile.interference = table(9.0);
  const auto found = [&](int nodes, int ranks) {
    return profile.interference_model(nodes, ranks).added[0][1];
  };
  EXPECT_EQ(found(1, 4), 9.0);
  profile.group_interference = {{1, 2, table(1.0)}, {1, 8, table(2.0)}, {2, 4, table(3.0)}};
  EXPECT_EQ(found(1, 2), 1.0);
  EXPECT_EQ(found(1, 6), 2.0);
  EXPECT_EQ(found(2, 4), 3.0);
  EXPECT_EQ(found(2, 1), 3.0);  // across nodes, though a group of two was measured within one
  profile.group_interference[0].added.pop_back();
  EXPECT_THROW(found(1, 2), Error);
}

}  // namespace
}  // namespace brume::hardware
