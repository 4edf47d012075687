// How many layers stages can hold beside an oracle that places them one by one in every way.
#include "../../src/tuner/capacity.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "../../src/tuner/space.hpp"
#include "planning_samples.hpp"

namespace brume::tuner {
namespace {

using samples::pick;

constexpr int trials = 3000;

struct Problem {
  hardware::Cluster cluster;
  StageCapacities capacities;
};

Problem random_problem(std::mt19937& random, int num_groups) {
  Problem p;
  p.cluster.groups.clear();
  for (int group = 0; group < num_groups; ++group)
    p.cluster.groups.push_back(
        {.nodes = pick<int>(random, {1, 2, 3}), .devices_per_node = pick<int>(random, {1, 2, 4})});
  p.capacities.resize(1 + random() % 4);
  for (auto& meshes : p.capacities)
    for (int group = 0; group < num_groups; ++group) {
      const hardware::NodeGroup& of = p.cluster.groups[std::size_t(group)];
      for (int devices : {1, 2, 4, 8, 12}) {
        const bool possible = devices <= of.devices_per_node ||
                              (devices % of.devices_per_node == 0 && devices <= of.devices());
        if (possible && random() % 3 != 0)
          meshes.push_back({group, devices, 1 + int(random() % 5)});
      }
    }
  return p;
}

/// Calls visit(layers of the last `stages`, devices they use by group) for each way to place them.
/// Stages take a group's devices from the last one on.
void each_placement(const Problem& p, std::size_t stages,
                    const std::function<void(int, const std::vector<int>&)>& visit) {
  std::vector<int> used(p.cluster.groups.size(), 0);
  const std::function<void(std::size_t, int)> place = [&](std::size_t after, int layers) {
    if (after == stages) return visit(layers, used);
    for (const MeshCapacity& mesh : p.capacities[after]) {
      const hardware::NodeGroup& of = p.cluster.groups[std::size_t(mesh.group)];
      int& of_group = used[std::size_t(mesh.group)];
      const int begin = of.devices() - of_group - mesh.devices;
      if (begin < 0 || !may_begin(begin, mesh.devices, of.devices_per_node)) continue;
      of_group += mesh.devices;
      place(after + 1, layers + mesh.layers);
      of_group -= mesh.devices;
    }
  };
  place(0, 0);
}

bool complete(const Problem& p, const std::vector<int>& used) {
  for (std::size_t i = 0; i < used.size(); ++i) {
    const hardware::NodeGroup& of = p.cluster.groups[i];
    if (used.size() == 1 ? used[i] != of.devices() : used[i] % of.devices_per_node != 0)
      return false;
  }
  return true;
}

std::size_t use_of(const Capacity& capacity, const std::vector<int>& used) {
  std::size_t use = 0;
  for (std::size_t i = 0; i < used.size(); ++i) use = capacity.usage().with(use, int(i), used[i]);
  return use;
}

int most_layers(const Problem& p) {
  int most = -1;
  each_placement(p, p.capacities.size(), [&](int layers, const std::vector<int>& used) {
    if (complete(p, used)) most = std::max(most, layers);
  });
  return most;
}

TEST(Capacity, WholePipelinesHoldWhatTheBestPlacementHolds) {
  std::mt19937 random(1);
  for (int trial = 0; trial < trials; ++trial) {
    const Problem p = random_problem(random, 1);
    EXPECT_EQ(Capacity(p.capacities, p.cluster, {}).first(0, 0), most_layers(p))
        << "trial " << trial;
  }
}

TEST(Capacity, SoDoThoseOnSeveralGroups) {
  std::mt19937 random(2);
  for (int trial = 0; trial < trials; ++trial) {
    const Problem p = random_problem(random, 2);
    EXPECT_EQ(Capacity(p.capacities, p.cluster, {}).first(0, 0), most_layers(p))
        << "trial " << trial;
  }
}

// What the dynamic program prunes by: nothing that can be completed is cut off.
TEST(Capacity, PartsOfEachPlacementAreWithinTheirBounds) {
  std::mt19937 random(3);
  int parts = 0;
  for (int trial = 0; trial < trials; ++trial) {
    const Problem p = random_problem(random, 1 + trial % 2);
    const Capacity capacity(p.capacities, p.cluster, {});
    for (std::size_t stages = 0; stages <= p.capacities.size(); ++stages)
      each_placement(p, stages, [&](int layers, const std::vector<int>& used) {
        const std::size_t use = use_of(capacity, used);
        // In one group only what the stages before can complete is kept.
        if (capacity.first(int(stages), use) < 0) return;
        ++parts;
        EXPECT_GE(capacity.last(int(stages), use), layers);
      });
  }
  EXPECT_GT(parts, trials);
}

TEST(Capacity, EnoughSaysWhetherAllLayersFit) {
  std::mt19937 random(4);
  int yes = 0;
  for (int trial = 0; trial < trials; ++trial) {
    const Problem p = random_problem(random, 1);
    const int most = most_layers(p);
    for (int layers : {1, std::max(1, most), most + 1}) {
      EXPECT_EQ(enough(p.capacities, layers, p.cluster, {}), most >= layers) << "trial " << trial;
      yes += most >= layers;
    }
  }
  EXPECT_GT(yes, trials / 10);
}

TEST(Capacity, EnoughNeverDeniesWhatSeveralGroupsHold) {
  std::mt19937 random(5);
  for (int trial = 0; trial < trials; ++trial) {
    const Problem p = random_problem(random, 2);
    if (const int most = most_layers(p); most > 0) {
      EXPECT_TRUE(enough(p.capacities, most, p.cluster, {})) << "trial " << trial;
    }
  }
}

}  // namespace
}  // namespace brume::tuner
