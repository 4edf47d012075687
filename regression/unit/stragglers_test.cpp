#include "engine/stragglers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <random>
#include <vector>

#include "comm/communicator.hpp"

namespace brume::engine {
namespace {

using schedule::Channel;

/// Two stages: of two data-parallel times two tensor-parallel ranks, and of one.
plan::Plan plan_of_five() {
  plan::Plan plan{.global_batch = 4, .microbatches = 2, .stages = {}};
  plan.stages = {{.layers = 1, .microbatch = 1, .dp = 2, .tp = 2},
                 {.layers = 1, .microbatch = 2, .dp = 1, .tp = 1}};
  return plan;
}

/// What rank 0 was told in `steps` steps of a second, in which computing takes the rank's factor
/// times 10 ms, copies out a tenth of that, all with noise.
std::vector<Straggler> told_of(int steps, const std::vector<double>& factors, double noise) {
  std::vector<Straggler> told;
  const plan::Plan plan = plan_of_five();
  comm::run_local(plan.devices(), [&](comm::Communicator& world) {
    Stragglers stragglers(plan);
    std::mt19937 random(unsigned(world.rank()) + 1);
    std::lognormal_distribution<double> jitter(0.0, noise);
    for (int i = 0; i < steps; ++i) {
      Stragglers::BusyTimes busy{};
      busy[std::size_t(Channel::compute)] =
          factors[std::size_t(world.rank())] * 0.010 * jitter(random);
      busy[std::size_t(Channel::d2h)] = 0.001 * jitter(random);
      // Whoever is fast waits for the slow one here.
      busy[std::size_t(Channel::collective_dp)] = 0.010 / factors[std::size_t(world.rank())];
      const auto found = stragglers.add(busy, 1.0, world);
      if (world.rank() == 0) told.insert(told.end(), found.begin(), found.end());
    }
  });
  return told;
}

TEST(Stragglers, AreNamedOnceWithTheirChannel) {
  const auto told = told_of(60, {1.0, 1.0, 1.3, 1.0, 5.0}, 0.05);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].rank, 2);
  EXPECT_EQ(told[0].channel, Channel::compute);
  EXPECT_NEAR(told[0].typical_s, 0.013, 0.001);
  EXPECT_NEAR(told[0].peers_s, 0.010, 0.001);
}

/// The first of up to `steps` steps of 20 ms after which a rank is named, whose computing takes
/// `slow(step)` where its peers' takes 10 ms; -1: none.
int named_after(int steps, const std::function<double(int)>& slow) {
  const plan::Plan plan = plan_of_five();
  int named = -1;
  comm::run_local(plan.devices(), [&](comm::Communicator& world) {
    Stragglers stragglers(plan);
    for (int i = 0; i < steps; ++i) {
      Stragglers::BusyTimes busy{};
      busy[std::size_t(Channel::compute)] = world.rank() == 1 ? slow(i) : 0.010;
      const auto found = stragglers.add(busy, 0.020, world);
      if (found.empty() || world.rank() != 0) continue;
      named = i + 1;
      EXPECT_EQ(found.front().rank, 1);
    }
  });
  return named;
}

TEST(Stragglers, AreNamedAfterTenSecondsOfManySteps) {
  const int after = named_after(700, [](int) { return 0.020; });
  EXPECT_GE(after, 500);
  EXPECT_LE(after, 550);
}

// A rank that becomes slow within a window is not overlooked until the next whole one has ended.
TEST(Stragglers, AreNamedTenSecondsAfterTheyBecameSlow) {
  const int slow_from = 300;
  const int after = named_after(1500, [](int i) { return i < slow_from ? 0.010 : 0.020; });
  EXPECT_GT(after, slow_from);
  EXPECT_LE(after, slow_from + 525);
}

// What holds a process up for a part of each tenth of a second does so in few of its short steps.
TEST(Stragglers, AreNamedWhereOneStepOfFourIsLong) {
  EXPECT_GE(named_after(700, [](int i) { return i % 4 == 0 ? 0.030 : 0.010; }), 500);
}

TEST(Stragglers, ARankThatStoodStillForASecondIsNone) {
  EXPECT_EQ(named_after(2000, [](int i) { return i % 300 == 299 ? 1.0 : 0.010; }), -1);
}

// Steps of one rank vary by a fifth, and some ranks are 3 % slower than others.
TEST(Stragglers, HealthyRanksAreNot) {
  EXPECT_TRUE(told_of(2000, {1.0, 1.03, 0.98, 1.0, 1.0}, 0.2).empty());
}

}  // namespace
}  // namespace brume::engine
