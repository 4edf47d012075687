// What `brume report` says a run's measured times would favour, beside a simulation of all ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "hardware/machine.hpp"
#include "io/run_file.hpp"
#include "io/trace.hpp"
#include "model/model.hpp"
#include "own_folder.hpp"
#include "plan/plan.hpp"
#include "schedule/compile.hpp"
#include "schedule/simulate.hpp"

namespace brume {
namespace {

namespace fs = std::filesystem;

/// Stages of so many layers on one node of eight H100s.
plan::Plan stages(const std::vector<int>& layers) {
  plan::Plan plan{.global_batch = 16, .microbatches = 8, .stages = {}};
  int first = 0;
  for (const int count : layers) {
    plan.stages.push_back({.first_layer = first,
                           .layers = count,
                           .nodes = 1,
                           .devices_per_node = 2,
                           .microbatch = 1,
                           .dp = 2,
                           .tp = 1,
                           .zero_level = 1});
    first += count;
  }
  return plan;
}

class Advice : public ::testing::Test {
 protected:
  schedule::Simulation simulated(const plan::Plan& plan, const schedule::Pace& pace) const {
    return schedule::simulate(schedule::compile_all(plan, model_, {.tight = false}), plan, model_,
                              machine_, {}, pace);
  }

  std::vector<double> gains(const plan::Plan& plan, const schedule::Pace& pace, int from) const;

  std::vector<io::RankTimeline> timelines(const plan::Plan& plan,
                                          const schedule::Pace& pace) const {
    const auto programs = schedule::compile_all(plan, model_, {.tight = false});
    const schedule::Simulation simulation = simulated(plan, pace);
    std::vector<io::RankTimeline> all;
    for (std::size_t rank = 0; rank < programs.size(); ++rank)
      all.push_back(io::timeline(programs[rank], simulation.spans[rank]));
    return all;
  }

  /// A run of this plan whose last iteration went at this pace, as `brume report --text` sees it.
  std::string reported(const plan::Plan& plan, const schedule::Pace& pace) const {
    io::RunDescription d;
    d.deck_text = deck::schema().write(deck_);
    d.plan_text = plan::text(plan);
    d.profile_text = hardware::text(machine_);
    d.ranks = plan.devices();
    d.predicted_iteration_s = simulated(plan, {}).iteration_s;
    io::RunFile run(directory_, d, 0);
    io::Row row;
    row.metrics.iteration_s = simulated(plan, pace).iteration_s;
    row.tokens_per_s = 1.0;
    row.predicted_s = d.predicted_iteration_s;
    run.add(row);
    run.write();
    io::write_trace(directory_ / "trace.json", timelines(plan, pace), timelines(plan, {}));
    const std::string line =
        std::string(std::getenv("BRUME")) + " report --text " + directory_.string();
    std::string text;
    std::FILE* pipe = ::popen(line.c_str(), "r");
    std::array<char, 4096> part{};
    while (const std::size_t read = std::fread(part.data(), 1, part.size(), pipe))
      text.append(part.data(), read);
    EXPECT_EQ(::pclose(pipe), 0);
    for (std::size_t at; (at = text.find("\n        ")) != text.npos;) text.replace(at, 9, " ");
    return text;
  }

  deck::Deck deck_ =
      deck::load(fs::path(BRUME_REGRESSION_DIR) / "../inputs/llama-8b.toml",
                 {"cluster.machine=dgx-h100", "cluster.nodes=1", "training.global_batch=16"});
  model::Config model_ = model::config(deck_.model, deck_.training.precision);
  hardware::Machine machine_{hardware::machine_profile(deck_.cluster.all_groups()[0])};
  test::OwnFolder folder_;
  fs::path directory_ = folder_.path();
};

schedule::Pace usual(const plan::Plan& plan) {
  std::array<double, schedule::num_channels> once;
  once.fill(1.0);
  return schedule::Pace(plan.stages.size(), once);
}

/// The gain of each way to give one layer of a stage away, by a simulation of all ranks: [to].
std::vector<double> Advice::gains(const plan::Plan& plan, const schedule::Pace& pace,
                                  int from) const {
  const double own_s = simulated(plan, pace).iteration_s;
  std::vector<double> gains;
  for (int to = 0; to < plan.num_stages(); ++to) {
    plan::Plan moved = plan;
    --moved.stages[std::size_t(from)].layers;
    ++moved.stages[std::size_t(to)].layers;
    for (std::size_t i = 1; i < moved.stages.size(); ++i)
      moved.stages[i].first_layer = moved.stages[i - 1].first_layer + moved.stages[i - 1].layers;
    gains.push_back(1.0 - simulated(moved, pace).iteration_s / own_s);
  }
  return gains;
}

TEST_F(Advice, ASlowStageGivesALayerAway) {
  const plan::Plan plan = stages({8, 8, 8, 8});
  schedule::Pace pace = usual(plan);
  constexpr int slow = 2;
  pace[slow][std::size_t(schedule::Channel::compute)] = 1.3;
  const std::string text = reported(plan, pace);
  const std::vector<double> all = gains(plan, pace, slow);
  const double best = *std::ranges::max_element(all);
  ASSERT_GT(best, 0.02);
  const std::size_t hint = text.find("stage 2 computes "), change = text.find("one layer to", hint);
  ASSERT_NE(hint, text.npos) << text;
  ASSERT_NE(change, text.npos) << text;
  int to = 0, more = 0;
  double percent = 0.0;
  ASSERT_EQ(std::sscanf(text.c_str() + hint, "stage 2 computes %d", &more), 1) << text;
  ASSERT_EQ(
      std::sscanf(text.c_str() + change, "one layer to stage %d would give %lf", &to, &percent), 2)
      << text;
  EXPECT_NEAR(all.at(std::size_t(to)), best, 1e-3) << text;
  EXPECT_NEAR(percent, 100.0 * best, 0.1) << text;
  EXPECT_GE(more, 20) << text;
}

// The last stage has the head: with one layer less it is as slow as the others.
TEST_F(Advice, NoLayerIsMovedToNoAvail) {
  const plan::Plan plan = stages({9, 8, 9, 6});
  schedule::Pace pace = usual(plan);
  for (auto& stage : pace) stage[std::size_t(schedule::Channel::compute)] = 1.1;
  const std::string text = reported(plan, pace);
  double best = 0.0;
  for (int from = 0; from < plan.num_stages(); ++from)
    for (const double gain : gains(plan, pace, from)) best = std::max(best, gain);
  ASSERT_LT(best, 0.01);
  EXPECT_EQ(text.find("one layer to stage"), text.npos) << text;
}

}  // namespace
}  // namespace brume
