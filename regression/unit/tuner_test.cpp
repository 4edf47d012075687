#include "tuner/tuner.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/error.hpp"
#include "planning_samples.hpp"
#include "schedule/compile.hpp"

namespace brume::tuner {
namespace {

/// A random small problem.
struct Problem {
  model::Config model;
  int global_batch;
  hardware::Cluster cluster;
  hardware::Profile profile;
  deck::SearchKeys search;
};

Problem random_problem(std::mt19937& random) {
  const int num_layers = 2 + int(random() % 3);
  Problem p{samples::small_model(num_layers, random() % 2 == 0),
            samples::pick<int>(random, {4, 8}),
            {.nodes = 1, .devices_per_node = samples::pick<int>(random, {1, 2, 2, 4})},
            samples::round_profile(8),
            {}};
  // From compute that takes nearly all time to transfers that do.
  const double speed = samples::pick<double>(random, {1, 10, 100});
  p.profile.flops_per_s *= speed;
  p.profile.bytes_per_s *= speed;
  p.search.microbatch = {1, 2};
  p.search.optim_offload = {0.0, samples::pick<double>(random, {0.5, 1.0})};
  p.search.act_offload = random() % 2 ? std::vector{0.0} : std::vector{0.0, 0.5};
  p.search.recompute = random() % 4 != 0;
  p.search.simulate_top = 3;
  p.cluster.host_memory_bytes =
      samples::pick<std::int64_t>(random, {0, 500'000, 1'500'000, 1 << 30});
  p.cluster.memory_bytes = 1'200'000 + std::int64_t(random() % 2'500'000);
  return p;
}

// --- the oracle: every plan, one by one ----------------------------------------------------------

/// A stage's strategy with its costs.
struct Costed {
  plan::Stage stage;
  analyzer::StageTime time;
  double device_bytes;
  double host_bytes;
};

symbolic::Tape compiled(const analyzer::StageExpressions& e) {
  return symbolic::Tape(
      std::vector{e.stable_s, e.delta_s, e.peak_forward_bytes, e.peak_backward_bytes, e.host_bytes},
      analyzer::variables());
}

std::vector<double> evaluate(const symbolic::Tape& tape,
                             const std::map<std::string, double, std::less<>>& values) {
  std::vector<const double*> inputs;
  for (const std::string& name : analyzer::variables())
    inputs.push_back(&values.find(name)->second);
  std::vector<double> results(5);
  std::vector<double*> outputs;
  for (double& result : results) outputs.push_back(&result);
  tape.evaluate(inputs, outputs, 1);
  return results;
}

/// All strategies of stage `index` of a plan like `frame`, for so many layers.
std::vector<Costed> strategies(const Problem& p, plan::Plan frame, int index, int layers) {
  const analyzer::StageRole role = analyzer::role_of(frame, index);
  const symbolic::Tape tape = compiled(analyzer::stage_expressions(p.model, p.profile, role));
  std::vector<Costed> found;
  plan::Stage& s = frame.stages[std::size_t(index)];
  s.layers = layers;
  for (int c = 0; c <= (p.search.recompute ? layers : 0); ++c)
    for (int zero : {0, 1})
      for (double o : p.search.optim_offload)
        for (double a : p.search.act_offload) {
          if (zero == 1 && s.dp == 1) continue;
          s.ckpt_layers = c, s.zero_level = zero;
          s.optim_offload_ratio = o, s.act_offload_ratio = a;
          const std::vector<double> v = evaluate(tape, analyzer::bindings(frame, index));
          found.push_back({s, {v[0], v[1]}, std::max(v[2], v[3]), v[4]});
        }
  return found;
}

using Ranked = std::multimap<double, plan::Plan>;  ///< by predicted iteration time

/// Adds all ways to complete `plan` from stage `index` on that fit by the model.
void complete(const Problem& p, plan::Plan& plan, std::vector<analyzer::StageTime>& times,
              int index, int layers_left, double host_bytes,
              std::map<std::pair<int, int>, std::vector<Costed>>& costed, Ranked& all) {
  if (index == plan.num_stages()) {
    if (layers_left == 0) all.emplace(analyzer::iteration_time(times, plan.microbatches), plan);
    return;
  }
  const int most = layers_left - (plan.num_stages() - 1 - index);
  for (int layers = 1; layers <= most; ++layers) {
    auto& options = costed[{index, layers}];
    if (options.empty()) options = strategies(p, plan, index, layers);
    for (const Costed& option : options) {
      const double host = host_bytes + option.stage.devices() * option.host_bytes;
      if (option.device_bytes > double(p.cluster.memory_bytes)) continue;
      if (host > double(p.cluster.host_memory_bytes)) continue;  // one node holds all stages
      const int first_layer = p.model.num_layers - layers_left;
      plan.stages[std::size_t(index)] = option.stage;
      plan.stages[std::size_t(index)].first_layer = first_layer;
      times.push_back(option.time);
      complete(p, plan, times, index + 1, layers_left - layers, host, costed, all);
      times.pop_back();
    }
  }
}

Ranked all_plans(const Problem& p) {
  Ranked all;
  const int devices = p.cluster.devices();
  for (int num_stages : {1, 2, 4})
    for (int tp : {1, 2, 4})
      for (int dp : {1, 2, 4})
        for (int b : p.search.microbatch) {
          if (num_stages * tp * dp != devices || num_stages > p.model.num_layers) continue;
          if (p.global_batch % (dp * b) != 0) continue;
          plan::Plan plan{.global_batch = p.global_batch,
                          .microbatches = p.global_batch / (dp * b),
                          .stages = {}};
          plan.stages.assign(std::size_t(num_stages),
                             {.devices_per_node = dp * tp, .microbatch = b, .dp = dp, .tp = tp});
          std::vector<analyzer::StageTime> times;
          std::map<std::pair<int, int>, std::vector<Costed>> costed;
          complete(p, plan, times, 0, p.model.num_layers, 0.0, costed, all);
        }
  return all;
}

bool can_be_placed(const Problem& p, const plan::Plan& plan) {
  std::int64_t host = 0;
  for (int rank = 0; rank < plan.devices(); ++rank) {
    const schedule::Program program = schedule::compile(plan, p.model, rank);
    if (program.arena_bytes[0] > p.cluster.memory_bytes) return false;
    host += program.arena_bytes[1];
  }
  return host <= p.cluster.host_memory_bytes;
}

std::optional<double> fastest(const Problem& p) {
  for (const auto& [iteration_s, plan] : all_plans(p))
    if (can_be_placed(p, plan)) return iteration_s;
  return std::nullopt;
}

Result tune(const Problem& p) {
  return tuner::tune(p.model, p.global_batch, p.cluster, p.profile, p.search);
}

double fastest_prediction(const Result& result) {
  return std::ranges::min_element(result.best, {},
                                  [](const Candidate& c) { return c.prediction.iteration_s; })
      ->prediction.iteration_s;
}

TEST(Tuner, NoPlanIsFasterThanTheOneFound) {
  std::mt19937 random(11);
  int feasible = 0, pipelined = 0, solves = 0, struck = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const Problem p = random_problem(random);
    const std::optional<double> expected_s = fastest(p);
    SCOPED_TRACE(trial);
    if (!expected_s) {
      EXPECT_THROW(tune(p), Error);
      continue;
    }
    const Result result = tune(p);
    EXPECT_NEAR(fastest_prediction(result), *expected_s, 2e-6 * *expected_s)
        << plan::text(result.best[0].plan);
    EXPECT_LE(result.search.gap, 2e-6);
    ++feasible;
    pipelined += result.best[0].plan.num_stages() > 1;
    solves += result.search.milp_solves;
    struck += result.search.struck;
  }
  // The cases must have reached every part of the search.
  EXPECT_GE(feasible, 30);
  EXPECT_GE(pipelined, 3);
  EXPECT_GE(solves, 3);
  EXPECT_GE(struck, 1);
}

Problem roomy() {
  std::mt19937 random(1);
  Problem p = random_problem(random);
  p.model = samples::small_model(4);
  p.global_batch = 16;
  p.cluster = {
      .nodes = 1, .devices_per_node = 4, .memory_bytes = 1 << 30, .host_memory_bytes = 1 << 30};
  p.search = {};
  return p;
}

TEST(Tuner, ReturnsPlansThatCheckAndFit) {
  Problem p = roomy();
  for (std::int64_t memory_bytes :
       {std::int64_t{1} << 30, std::int64_t{2'500'000}, std::int64_t{1'600'000}}) {
    p.cluster.memory_bytes = memory_bytes;
    for (const Candidate& candidate : tune(p).best) {
      EXPECT_NO_THROW(plan::check(candidate.plan, p.model, p.cluster));
      EXPECT_TRUE(can_be_placed(p, candidate.plan));
      EXPECT_LE(candidate.placed_device_bytes, memory_bytes);
      EXPECT_LE(candidate.placed_host_bytes, p.cluster.host_memory_bytes);
    }
  }
}

TEST(Tuner, RanksPlansBySimulationAndRepeatsNone) {
  const Result result = tune(roomy());
  EXPECT_EQ(result.best.size(), 5u);
  std::set<std::string> texts;
  for (std::size_t i = 0; i < result.best.size(); ++i) {
    EXPECT_GE(result.best[i].simulated_s, result.best[i == 0 ? 0 : i - 1].simulated_s);
    texts.insert(plan::text(result.best[i].plan));
  }
  EXPECT_EQ(texts.size(), result.best.size());
}

TEST(Tuner, SearchListsFixChoices) {
  Problem p = roomy();
  p.search.stages = {2};
  p.search.tp = {2};
  p.search.microbatch = {4};
  p.search.recompute = false;
  for (const Candidate& candidate : tune(p).best) {
    EXPECT_EQ(candidate.plan.num_stages(), 2);
    EXPECT_EQ(candidate.plan.stages[0].tp, 2);
    EXPECT_EQ(candidate.plan.stages[0].microbatch, 4);
    EXPECT_EQ(candidate.plan.stages[0].ckpt_layers, 0);
  }
}

TEST(Tuner, NothingFitsSaysWhatWould) {
  Problem p = roomy();
  p.cluster.memory_bytes = 300'000;
  try {
    tune(p);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.failure(), Failure::infeasible);
    const std::string message = error.what();
    EXPECT_NE(message.find("no plan fits"), std::string::npos) << message;
    // The advice holds: with that much memory there is a plan.
    const auto at = message.find("memory_gib = ", message.find("allows"));
    ASSERT_NE(at, std::string::npos) << message;
    p.cluster.memory_bytes = std::int64_t(std::stod(message.substr(at + 13)) * (1 << 30));
    EXPECT_NO_THROW(tune(p));
  }
}

TEST(Tuner, AnImpossibleSplitIsNamed) {
  Problem p = roomy();
  p.search.tp = {3};
  try {
    tune(p);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.failure(), Failure::infeasible);
    EXPECT_NE(std::string(error.what()).find("no way to split"), std::string::npos) << error.what();
  }
}

// With memory short the best plan saves memory somehow; without that knob it gets no faster.
TEST(Tuner, AblationsCostTime) {
  Problem p = roomy();
  p.cluster.memory_bytes = 1'600'000;
  const Result result = tune(p);
  EXPECT_FALSE(result.ablations.empty());
  for (const Ablation& ablation : result.ablations)
    EXPECT_GE(ablation.iteration_s.value_or(1e9), fastest_prediction(result) * (1.0 - 1e-6))
        << ablation.knob;
  EXPECT_NE(result.nearest_infeasible.find("more"), std::string::npos);
}

TEST(Tuner, ReportShowsPlanReasonsAndMargins) {
  Problem p = roomy();
  p.cluster.memory_bytes = 1'600'000;
  const std::string text = report(tune(p), p.cluster);
  for (const char* word : {"time ", "memory ", "why ", "next ", "misses ", "search "})
    EXPECT_NE(text.find(word), std::string::npos) << word << "\n" << text;
}

}  // namespace
}  // namespace brume::tuner
