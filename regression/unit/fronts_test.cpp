// Fronts of a stage's strategies beside all strategies, one by one.
#include "../../src/tuner/fronts.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "../../src/tuner/grid.hpp"
#include "../../src/tuner/rows.hpp"
#include "../../src/tuner/space.hpp"
#include "base/numbers.hpp"
#include "planning_samples.hpp"

namespace brume::tuner {
namespace {

using samples::pick;

/// Whether nothing that counts is worse, but for a share of it.
bool no_worse(const Point& a, const Point& b, bool host_matters, double share = 1e-12) {
  const auto up_to = [&](double seconds) { return seconds + share * std::abs(seconds); };
  return a.stable_s <= up_to(b.stable_s) && a.fill_s() <= up_to(b.fill_s()) &&
         a.shortest_s() <= up_to(b.shortest_s()) && a.standalone_s() <= up_to(b.standalone_s()) &&
         (!host_matters || a.host_bytes <= b.host_bytes);
}

TEST(ParetoFront, KeepsWhatNothingBeatsAndNoMore) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    const bool host_matters = trial % 2 == 1;
    std::vector<Point> points;
    for (unsigned left = 1 + random() % 40; left > 0; --left) {
      const Strategy different{.layers = int(points.size())};
      Point& point = points.emplace_back(0, different);
      point.times() = {.stable_s = double(random() % 5),
                       .delta_s = double(random() % 3),
                       .early_send_s = double(random() % 3),
                       .standalone_delta_s = double(random() % 3)};
      point.host_bytes = double(random() % 3);
    }
    const std::vector<Point> front = pareto_front(points, host_matters);
    EXPECT_TRUE(std::ranges::is_sorted(front, {}, &Point::stable_s));
    for (const Point& point : points)
      EXPECT_TRUE(std::ranges::any_of(
          front, [&](const Point& kept) { return no_worse(kept, point, host_matters); }));
    for (const Point& one : front)
      for (const Point& other : front)
        EXPECT_TRUE(one.layers() == other.layers() || !no_worse(one, other, host_matters));
  }
}

/// Strategies of a position, all of them, priced.
std::vector<Point> all_strategies(Grid& grid, const StagePosition& position, int layers,
                                  const deck::SearchKeys& keys) {
  std::vector<Point> all;
  const auto [least, most] = Axes(keys).levels(layers);
  for (int level = least; level <= most; ++level)
    for (const Sharding& sharding : Axes(keys).shardings(position.mesh()))
      for (double w : keys.weight_offload)
        for (double g : keys.grad_offload)
          for (double o : keys.optim_offload)
            for (double a : keys.act_offload)
              all.emplace_back(position.layout, Strategy{.sharding = sharding,
                                                         .ratios = {w, g, o, a},
                                                         .layers = layers,
                                                         .level = level,
                                                         .stores_rest = keys.store_rest});
  grid.price_time(position, all);
  grid.price_memory(position, all);
  return all;
}

// Ratios are not raised so that more layers may be stored, so some that are may be missed.
// One layer with its optimizer state on the host has a first forward that is a little shorter, so
// times do not rise with all ratios everywhere.
TEST(Fronts, NoStrategyThatFitsIsFaster) {
  std::mt19937 random(2);
  int fitting = 0, missed = 0, missed_stored = 0;
  for (int trial = 0; trial < 24; ++trial) {
    const model::Config model = samples::small_model(4, trial % 2 == 0);
    hardware::Profile profile = samples::round_profile(8);
    const double speed = pick<double>(random, {1, 10, 100});
    profile.flops_per_s *= speed;
    profile.bytes_per_s *= speed;
    const hardware::Machine machine(profile);
    hardware::Cluster cluster{hardware::NodeGroup{
        .nodes = trial % 4 == 3 ? 2 : 1,
        .devices_per_node = pick<int>(random, {2, 4}),
        .memory_bytes = 700'000 + std::int64_t(random() % 2'000'000),
        .host_memory_bytes = pick<std::int64_t>(random, {500'000, 4'000'000, 1 << 30})}};
    deck::SearchKeys keys;
    keys.microbatch = {1, 2};
    keys.unequal_stages = false;
    keys.store = trial % 3 == 0;
    keys.store_rest = trial % 3 == 1;
    const Deadline deadline;
    const Axes axes(keys);
    for (const PipelineConfig& config : configs(model, 8, cluster, keys)) {
      Grid grid(model, machine, deadline);
      AllRows rows(cluster);
      Fronts fronts(axes, rows);
      const StagePosition position{config, 0, int(random() % unsigned(config.num_stages))};
      const int most = model.num_layers - config.num_stages + 1;
      const int layers = 1 + int(random() % unsigned(most));
      fronts.prepare(grid, position, layers, layers, infinity);
      const std::vector<Point>& front = fronts.front(position, layers);
      const hardware::NodeGroup& group = cluster.groups[0];
      for (const Point& point : all_strategies(grid, position, layers, keys)) {
        if (point.device_bytes > double(group.memory_bytes) ||
            point.host_bytes * position.mesh().devices_per_node > double(group.host_memory_bytes))
          continue;
        ++fitting;
        const auto covered = [&](double share) {
          return std::ranges::any_of(
              front, [&](const Point& kept) { return no_worse(kept, point, false, share); });
        };
        (keys.store && point.strategy.stored_layers() > 0 ? missed_stored : missed) +=
            !covered(1e-12);
        EXPECT_TRUE(covered(0.1));
      }
    }
  }
  EXPECT_GT(fitting, 10'000);
  EXPECT_EQ(missed, 0) << "of " << fitting;
  EXPECT_LE(missed_stored, fitting / 100) << "of " << fitting;
}

// What a stage has to do is a bound on the plan's time: of several groups a plan may use a part of
// the devices, so ranks of others do not count.
TEST(Grid, NoStrategyTakesLongerThanItsPlan) {
  const model::Config model = samples::small_model(4, true);
  hardware::Profile profile = samples::round_profile(2);
  hardware::Cluster cluster;
  cluster.groups.clear();
  for (const char* name : {"a", "b"})
    cluster.groups.push_back({.name = name,
                              .nodes = 2,
                              .devices_per_node = 2,
                              .memory_bytes = 1 << 30,
                              .host_memory_bytes = 1 << 30});
  const hardware::Machine machine(cluster, {profile, profile}, {});
  const Deadline deadline;
  Grid grid(model, machine, deadline);
  int looked_at = 0;
  for (const PipelineConfig& config : configs(model, 8, cluster, {})) {
    if (config.num_stages > 1) continue;
    for (int layout = 0; layout < int(config.layouts.size()); ++layout) {
      Point point(layout, {.layers = model.num_layers});
      const Layout& mesh = config.layouts[std::size_t(layout)];
      plan::Plan plan{.global_batch = 8,
                      .microbatches = config.microbatches,
                      .order = {.run_ahead = config.order.run_ahead},
                      .stages = {stage_of(mesh, cluster.groups[std::size_t(mesh.group)].name)}};
      point.strategy.apply_to(plan.stages[0]);
      grid.price_time({config, layout, 0}, std::span(&point, 1));
      EXPECT_LE(config.microbatches * point.stable_s + point.delta_s,
                grid.predicted_s(plan) * (1.0 + 1e-9))
          << plan::text(plan);
      ++looked_at;
    }
  }
  EXPECT_GT(looked_at, 20);
}

}  // namespace
}  // namespace brume::tuner
