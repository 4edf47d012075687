// The bound that prices of devices and layers give, beside the least sum over all assignments.
#include "../../src/tuner/prices.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>

#include "planning_samples.hpp"

namespace brume::tuner {
namespace {

using samples::pick;

struct Problem {
  std::vector<StageClass> stages;
  int num_layers;
  std::vector<int> devices;
};

Problem random_problem(std::mt19937& random, int num_groups) {
  Problem p;
  for (int group = 0; group < num_groups; ++group)
    p.devices.push_back(pick<int>(random, {2, 4, 8}));
  for (unsigned kinds = 1 + random() % 2; kinds > 0; --kinds) {
    StageClass stage_class{.stages = 1 + int(random() % 2), .options = {}};
    for (unsigned options = 2 + random() % 5; options > 0; --options) {
      const int devices = pick<int>(random, {1, 2, 4}), layers = 1 + int(random() % 6);
      const double speed = std::uniform_real_distribution(0.5, 1.5)(random);
      stage_class.options.push_back(
          {int(random() % unsigned(num_groups)), devices, layers, layers / (speed * devices)});
    }
    p.stages.push_back(stage_class);
  }
  p.num_layers = 1 + int(random() % 12);
  return p;
}

/// The least sum of times of stages that use no more devices and hold all layers; infinity: none.
double least_sum(const Problem& p) {
  double least_s = std::numeric_limits<double>::infinity();
  std::vector<int> left = p.devices;
  const std::function<void(std::size_t, int, int, double)> choose =
      [&](std::size_t kind, int chosen, int layers, double sum_s) {
        if (kind == p.stages.size()) {
          if (layers >= p.num_layers) least_s = std::min(least_s, sum_s);
          return;
        }
        const StageClass& stage_class = p.stages[kind];
        if (chosen == stage_class.stages) return choose(kind + 1, 0, layers, sum_s);
        for (const Option& option : stage_class.options) {
          int& of_group = left[std::size_t(option.group)];
          if (of_group < option.devices) continue;
          of_group -= option.devices;
          choose(kind, chosen + 1, layers + option.layers, sum_s + option.fill_s);
          of_group += option.devices;
        }
      };
  choose(0, 0, 0, 0.0);
  return least_s;
}

/// The right side of the inequality in prices.hpp.
double bound(const Problem& p, const Prices& prices) {
  double sum_s = prices.layer_s * p.num_layers;
  for (std::size_t group = 0; group < p.devices.size(); ++group)
    sum_s -= prices.device_s[group] * p.devices[group];
  for (const StageClass& stage_class : p.stages) {
    double least_s = std::numeric_limits<double>::infinity();
    for (const Option& option : stage_class.options)
      least_s = std::min(least_s, option.fill_s +
                                      prices.device_s[std::size_t(option.group)] * option.devices -
                                      prices.layer_s * option.layers);
    sum_s += stage_class.stages * least_s;
  }
  return sum_s;
}

TEST(Prices, BoundIsBelowEveryChoice) {
  std::mt19937 random(1);
  int possible = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const Problem p = random_problem(random, 1 + trial % 2);
    const double least_s = least_sum(p);
    if (least_s == std::numeric_limits<double>::infinity()) continue;
    ++possible;
    EXPECT_LE(best_prices(p.stages, p.num_layers, p.devices, {}).sum_s, least_s * (1.0 + 1e-12))
        << "trial " << trial;
  }
  EXPECT_GT(possible, 50);
}

TEST(Prices, SumIsTheBoundUnderThePricesThatAreGiven) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 100; ++trial) {
    const Problem p = random_problem(random, 1 + trial % 2);
    const Prices prices = best_prices(p.stages, p.num_layers, p.devices, {});
    EXPECT_NEAR(prices.sum_s, bound(p, prices), 1e-9 * std::max(1.0, prices.sum_s));
    EXPECT_GE(prices.layer_s, 0.0);
    for (std::size_t group = 0; group < p.devices.size(); ++group)
      EXPECT_GE(prices.device_s[group], 0.0);
  }
}

// The bound is concave in the prices of one group's devices and of layers, so the search has to
// come near the best of a fine lattice of prices.
TEST(Prices, NoPricesOfALatticeBoundHigher) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 100; ++trial) {
    const Problem p = random_problem(random, 1);
    if (least_sum(p) == std::numeric_limits<double>::infinity()) continue;
    const double found_s = best_prices(p.stages, p.num_layers, p.devices, {}).sum_s;
    for (int device = 0; device <= 40; ++device)
      for (int layer = 0; layer <= 40; ++layer) {
        Prices prices;
        prices.device_s[0] = device * 0.1;
        prices.layer_s = layer * 0.1;
        EXPECT_LE(bound(p, prices), found_s + 1e-5 * std::max(1.0, found_s)) << "trial " << trial;
      }
  }
}

// Two stages alike that may take 1 device a layer and second: three devices' worth of time is
// exactly the sum.
TEST(Prices, BoundIsExactWhereChoicesAreProportional) {
  const std::vector<StageClass> stages{{2, {{0, 1, 2, 2.0}, {0, 2, 4, 2.0}}}};
  EXPECT_NEAR(best_prices(stages, 8, {4}, {}).sum_s, 4.0, 1e-6);
}

}  // namespace
}  // namespace brume::tuner
