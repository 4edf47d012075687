#include "../../src/tuner/node_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "planning_samples.hpp"
#include "schedule/compile.hpp"
#include "schedule/simulate.hpp"
#include "tuner/tuner.hpp"

namespace brume::tuner {
namespace {

using schedule::NodeTraffic;
using Order = NodeOrders::Order;

/// What some traffic takes in an order, told anew: the slowest pair of its nodes counts.
double taken_s(const std::vector<hardware::SlowPair>& pairs,
               const std::vector<NodeTraffic>& traffic, const Order& order) {
  double sum_s = 0.0;
  for (const NodeTraffic& one : traffic) {
    std::set<int> nodes;
    for (const int place : one.places) nodes.insert(order[std::size_t(place)]);
    double times = 1.0;
    for (const hardware::SlowPair& pair : pairs)
      if (nodes.contains(pair.first) && nodes.contains(pair.second))
        times = std::max(times, pair.times);
    sum_s += times * one.seconds;
  }
  return sum_s;
}

hardware::Profile with_slow(const std::vector<hardware::SlowPair>& pairs, int ranks_per_node = 1) {
  hardware::Profile profile = samples::round_profile(ranks_per_node);
  for (hardware::LinkRow& row : profile.links) row.time_s *= 20.0;
  profile.slow_pairs = pairs;
  return profile;
}

bool holds_each_once(Order order) {
  std::ranges::sort(order);
  for (std::size_t i = 0; i < order.size(); ++i)
    if (order[i] != int(i)) return false;
  return true;
}

// Against all orders, one by one; what changes places step by step is never worse than the nodes as
// they are.
TEST(NodeOrder, OfFewNodesTheBestOneIsFound) {
  std::mt19937 random(7);
  int as_good = 0;
  constexpr int trials = 60;
  for (int trial = 0; trial < trials; ++trial) {
    const int nodes = 3 + int(random() % 4);
    std::vector<hardware::SlowPair> pairs;
    for (int a = 0; a < nodes; ++a)
      for (int b = a + 1; b < nodes; ++b)
        if (random() % 2) pairs.push_back({b, a, 1.0 + double(random() % 5)});
    std::vector<NodeTraffic> traffic;
    for (int i = 0; i < 6; ++i) {
      NodeTraffic& one = traffic.emplace_back();
      for (int place = 0; place < nodes; ++place)
        if (random() % 2) one.places.push_back(place);
      one.seconds = double(1 + random() % 9);
      if (one.places.size() < 2 || int(one.places.size()) == nodes) traffic.pop_back();
    }
    Order order(std::size_t(nodes), 0);
    std::iota(order.begin(), order.end(), 0);
    const double as_given_s = taken_s(pairs, traffic, order);
    double least_s = as_given_s;
    while (std::ranges::next_permutation(order).found)
      least_s = std::min(least_s, taken_s(pairs, traffic, order));
    const NodeOrders orders(with_slow(pairs), nodes, traffic);
    const Order exact = orders.exact(), near = orders.near();
    EXPECT_TRUE(holds_each_once(exact) && holds_each_once(near));
    EXPECT_NEAR(taken_s(pairs, traffic, exact), least_s, 1e-9);
    EXPECT_NEAR(orders.seconds(exact), least_s, 1e-9);
    EXPECT_LE(taken_s(pairs, traffic, near), as_given_s + 1e-9);
    as_good += taken_s(pairs, traffic, near) < least_s * 1.0001;
  }
  EXPECT_GE(as_good, trials * 8 / 10);
}

// Nodes are dealt out of two racks in turn; between racks all links are slow. A pipeline crosses
// over once.
TEST(NodeOrder, APipelineOfManyNodesCrossesRacksOnce) {
  constexpr int nodes = 24;
  std::vector<hardware::SlowPair> pairs;
  for (int a = 0; a < nodes; ++a)
    for (int b = a + 1; b < nodes; b += 2) pairs.push_back({a, b, 4.0});
  std::vector<NodeTraffic> traffic;
  for (int place = 1; place < nodes; ++place) traffic.push_back({{place - 1, place}, 1.0});
  const NodeOrders orders(with_slow(pairs), nodes, traffic);
  const Order order = orders.near();
  EXPECT_TRUE(holds_each_once(order));
  EXPECT_DOUBLE_EQ(orders.seconds(order), nodes - 2 + 4.0);
}

/// Four stages on four nodes of a device.
class NodeOrderOfPlan : public testing::Test {
 protected:
  double simulated_s(const plan::Plan& plan, const hardware::Machine& machine) const {
    return schedule::simulate(schedule::compile_all(plan, model_), plan, model_, machine)
        .iteration_s;
  }
  plan::Plan on_best_nodes(const plan::Plan& plan, const hardware::Machine& machine) const {
    return tuner::on_best_nodes(plan, model_, cluster_, machine);
  }
  const model::Config model_ = samples::small_model(4, false);
  const hardware::Cluster cluster_ = hardware::NodeGroup{.nodes = 4, .devices_per_node = 1};
  const hardware::Profile fast_ = with_slow({});
  plan::Plan plan_ = plan::equal_stages(model_, 8, 4, {.nodes = 1, .microbatch = 1});
};

// Only what all ranks exchange still takes the slow link, as it would wherever that was.
TEST_F(NodeOrderOfPlan, ThePipelineKeepsOffASlowLink) {
  const hardware::Machine slow = with_slow({{0, 1, 20.0}}), unused = with_slow({{0, 3, 20.0}});
  const plan::Plan ordered = on_best_nodes(plan_, slow);
  EXPECT_EQ(ordered.node_order, (Order{0, 2, 1, 3}));
  EXPECT_GT(simulated_s(plan_, slow), 1.2 * simulated_s(plan_, unused));
  EXPECT_DOUBLE_EQ(simulated_s(ordered, slow), simulated_s(plan_, unused));
}

// Two stages of two nodes each: neither their collectives nor their messages need a slow link.
TEST_F(NodeOrderOfPlan, DataParallelGroupsKeepOffSlowLinks) {
  const hardware::Machine slow = with_slow({{0, 1, 20.0}, {2, 3, 20.0}});
  plan::Plan plan = plan::equal_stages(model_, 8, 2, {.microbatch = 1, .dp = 2, .zero_level = 3});
  for (plan::Stage& stage : plan.stages) stage.nodes = 2, stage.devices_per_node = 1;
  plan::check(plan, model_, cluster_);
  const plan::Plan ordered = on_best_nodes(plan, slow);
  EXPECT_EQ(ordered.node_order, (Order{0, 2, 3, 1}));
  EXPECT_LT(simulated_s(ordered, slow), 0.5 * simulated_s(plan, slow));
}

TEST_F(NodeOrderOfPlan, WithoutSlowPairsNodesStayAsTheyAre) {
  EXPECT_TRUE(on_best_nodes(plan_, fast_) == plan_);
  // Nor where all are alike, the profile is of other nodes, or the time is over.
  hardware::Profile slow = with_slow({});
  for (int a = 0; a < 4; ++a)
    for (int b = a + 1; b < 4; ++b) slow.slow_pairs.push_back({a, b, 2.0});
  EXPECT_TRUE(on_best_nodes(plan_, slow) == plan_);
  EXPECT_TRUE(on_best_nodes(plan_, with_slow({{0, 1, 20.0}}, 2)) == plan_);
  EXPECT_TRUE(tuner::on_best_nodes(plan_, model_, cluster_, with_slow({{0, 1, 20.0}}), 1,
                                   Deadline(0.0)) == plan_);
}

// Before there is an order only what is on all nodes meets a slow pair: predictions say so, and
// bounds.
TEST_F(NodeOrderOfPlan, WhatIsOnAllNodesIsSlowInAnyOrder) {
  const hardware::Machine slow = with_slow({{0, 1, 20.0}, {1, 2, 10.0}});
  const hardware::Machine before = before_nodes(slow, cluster_);
  const auto predicted = [&](const plan::Plan& plan, const hardware::Machine& machine) {
    return analyzer::analyze(plan, model_, machine);
  };
  plan::Plan whole = plan::equal_stages(model_, 8, 1, {.microbatch = 1, .dp = 4});
  whole.stages[0].nodes = 4, whole.stages[0].devices_per_node = 1;
  EXPECT_GT(predicted(whole, slow).iteration_s, 1.2 * predicted(whole, fast_).iteration_s);
  EXPECT_EQ(predicted(whole, before).iteration_s, predicted(whole, slow).iteration_s);
  EXPECT_NE(predicted(plan_, slow).messages_s, predicted(plan_, fast_).messages_s);
  EXPECT_EQ(predicted(plan_, before).messages_s, predicted(plan_, fast_).messages_s);
  const auto least = [&](int nodes, int tp, const hardware::Machine& machine) {
    return least_times({.nodes = nodes, .dp = 4 / tp, .tp = tp}, cluster_, machine);
  };
  EXPECT_EQ(least(4, 1, slow), 20.0);
  EXPECT_EQ(least(4, 1, fast_), 1.0);
  EXPECT_EQ(least(3, 1, slow), 1.0);
  EXPECT_EQ(least(4, 2, slow), 1.0);
}

// The traffic of all microbatches follows from that of two.
TEST_F(NodeOrderOfPlan, TrafficIsThatOfAllMicrobatches) {
  std::map<std::vector<int>, double> sent_s;
  for (const schedule::Program& program : schedule::compile_all(plan_, model_))
    for (const schedule::Task& task : program.tasks)
      if (task.operation == schedule::Operation::send)
        sent_s[{std::min(program.rank, task.peer), std::max(program.rank, task.peer)}] +=
            schedule::task_s(task, program, plan_, model_, fast_);
  int pairs = 0;
  for (const NodeTraffic& one : schedule::node_traffic(plan_, model_, fast_)) {
    if (one.places.size() != 2) continue;
    EXPECT_NEAR(one.seconds, sent_s.at(one.places), 1e-9);
    ++pairs;
  }
  EXPECT_EQ(pairs, 3);
}

TEST_F(NodeOrderOfPlan, TheSearchOrdersItsPlansAndSaysWhatThatGains) {
  deck::SearchKeys keys;
  keys.stages = {4};
  keys.microbatch = {1};
  keys.zero_levels = {0};
  keys.optim_offload = keys.act_offload = {0.0};
  keys.time_limit_s = 3600.0;
  hardware::Cluster cluster = cluster_;
  cluster.groups[0].memory_bytes = cluster.groups[0].host_memory_bytes = std::int64_t{1} << 30;
  const Result fast = tune(model_, 8, cluster, fast_, keys);
  EXPECT_TRUE(fast.best[0].plan.node_order.empty());
  const Result slow = tune(model_, 8, cluster, with_slow({{0, 1, 20.0}}), keys);
  const plan::Plan& best = slow.best[0].plan;
  EXPECT_EQ(best.node_order, (Order{0, 2, 1, 3}));
  EXPECT_NO_THROW(plan::check(best, model_, cluster));
  EXPECT_NEAR(slow.best[0].seconds(), fast.best[0].seconds(), 0.1 * fast.best[0].seconds());
  const auto without =
      std::ranges::find(slow.ablations, std::string("an order of nodes"), &Ablation::knob);
  ASSERT_NE(without, slow.ablations.end());
  EXPECT_GT(*without->iteration_s, 1.2 * slow.best[0].seconds());
}

}  // namespace
}  // namespace brume::tuner
