// Plans that are known before the search begins: even ones, plans for other jobs, those of a state.
#include "../../src/tuner/even_plans.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <vector>

#include "../../src/tuner/rows.hpp"
#include "../../src/tuner/worker_pool.hpp"
#include "analyzer/analyzer.hpp"
#include "base/error.hpp"
#include "plan/adapted.hpp"
#include "planning_samples.hpp"
#include "tuner/tuner.hpp"

namespace brume::tuner {
namespace {

constexpr int devices = 8, global_batch = 16;

struct Job {
  explicit Job(std::int64_t memory_bytes)
      : cluster(hardware::NodeGroup{.nodes = 1,
                                    .devices_per_node = devices,
                                    .memory_bytes = memory_bytes,
                                    .host_memory_bytes = std::int64_t{1} << 40}) {}

  std::vector<Candidate> even_plans() {
    AllRows rows(cluster);
    WorkerPool workers(model, machine, never, 2);
    return tuner::even_plans({model, global_batch, cluster, machine, keys, 64, never, &rows},
                             workers);
  }

  model::Config model = samples::small_model(8, false);
  hardware::Cluster cluster;
  hardware::Machine machine{samples::round_profile(devices)};
  deck::SearchKeys keys;
  Deadline never;
};

struct Predicted {
  double iteration_s;
  std::int64_t peak_bytes;
};

/// Predictions of all plans of 1F1B with equal stages whose layers all do the same.
std::vector<Predicted> all_even_plans(const Job& job) {
  analyzer::Analyzer analyzer(job.model, job.machine);
  std::vector<Predicted> found;
  for (const int num_stages : {1, 2, 4, 8})
    for (int tp = 1; tp <= std::min(4, devices / num_stages); tp *= 2)
      for (int microbatch = 1; microbatch <= global_batch; microbatch *= 2)
        for (int zero_level = 0; zero_level <= 3; ++zero_level)
          for (const int level : {-1, 0, 1})
            for (const int run_ahead : {1, 2}) {
              const int dp = devices / num_stages / tp;
              if (global_batch % (dp * microbatch) != 0 || (dp == 1 && zero_level > 0)) continue;
              plan::Plan plan = plan::equal_stages(job.model, global_batch, num_stages,
                                                   {.devices_per_node = dp * tp,
                                                    .microbatch = microbatch,
                                                    .dp = dp,
                                                    .tp = tp,
                                                    .zero_level = zero_level});
              plan.order.run_ahead = run_ahead;
              for (plan::Stage& stage : plan.stages)
                (level > 0 ? stage.ckpt_layers : stage.stored_layers) =
                    level != 0 ? stage.layers : 0;
              const analyzer::Prediction prediction = analyzer.analyze(plan);
              std::int64_t peak_bytes = 0;
              for (const auto& stage : prediction.stages)
                peak_bytes = std::max(peak_bytes, stage.peak_bytes());
              found.push_back({prediction.iteration_s, peak_bytes});
            }
  return found;
}

TEST(EvenPlans, TheFirstIsTheFastest) {
  const std::vector<Predicted> all = all_even_plans(Job(0));
  bool short_of_memory = false;
  for (const std::int64_t memory_bytes : {std::int64_t{1} << 40, std::int64_t{9'000'000},
                                          std::int64_t{5'000'000}, std::int64_t{3'000'000}}) {
    Job job(memory_bytes);
    job.keys.chunks = {1};
    job.keys.zero_bubble = false;
    const std::vector<Candidate> found = job.even_plans();
    double fastest_s = infinity;
    for (const Predicted& one : all)
      if (one.peak_bytes <= memory_bytes) fastest_s = std::min(fastest_s, one.iteration_s);
    ASSERT_EQ(found.empty(), fastest_s == infinity) << memory_bytes;
    if (found.empty()) continue;
    // Each configuration has only its strategy of the least bound predicted.
    EXPECT_LE(found[0].predicted_s, 1.02 * fastest_s) << memory_bytes;
    for (const Candidate& one : found) {
      EXPECT_NO_THROW(plan::check(one.plan, job.model, job.cluster));
      EXPECT_GE(one.predicted_s, found[0].predicted_s);
      for (const plan::Stage& stage : one.plan.stages) {
        EXPECT_EQ(stage.dp, one.plan.stages[0].dp);
        EXPECT_EQ(stage.zero_level, one.plan.stages[0].zero_level);
      }
      short_of_memory |= one.plan.stages[0].ckpt_layers > 0;
    }
  }
  EXPECT_TRUE(short_of_memory);
}

TEST(EvenPlans, OtherOrdersAreAmongThem) {
  Job job(std::int64_t{1} << 40);
  job.keys.stages = {4};
  bool chunks = false, split = false;
  for (const Candidate& one : job.even_plans()) {
    chunks |= one.plan.order.chunks > 1;
    split |= one.plan.order.splits_backward();
  }
  EXPECT_TRUE(chunks);
  EXPECT_TRUE(split);
}

// Stages between the ends take what does not divide.
TEST(EvenPlans, EndsHaveFewerLayers) {
  Job job(std::int64_t{1} << 40);
  job.model = samples::small_model(10, false);
  job.keys.stages = {4};
  job.keys.chunks = {1};
  const std::vector<Candidate> found = job.even_plans();
  ASSERT_FALSE(found.empty());
  std::vector<int> layers;
  for (const plan::Stage& stage : found[0].plan.stages) layers.push_back(stage.layers);
  EXPECT_EQ(layers, (std::vector<int>{2, 3, 3, 2}));
}

// --- plans for other jobs ----------------------------------------------------------------------

/// A search on nodes of four devices with little memory.
struct Search4 {
  Result tune(Options options = {}) const {
    options.reasons = false;
    options.threads = 1;
    return tuner::tune(model, batch, cluster(), machine, keys(), options);
  }
  hardware::Cluster cluster() const {
    return hardware::NodeGroup{.nodes = nodes,
                               .devices_per_node = 4,
                               .memory_bytes = memory_bytes,
                               .host_memory_bytes = std::int64_t{1} << 40};
  }
  static deck::SearchKeys keys() {
    deck::SearchKeys keys;
    keys.optim_offload = keys.act_offload = {0.0, 1.0};
    keys.weight_offload = keys.grad_offload = {0.0};
    keys.microbatch = {1, 2};
    keys.tp = {1, 2};
    keys.time_limit_s = 3600.0;
    return keys;
  }

  int nodes = 1, batch = 8;
  std::int64_t memory_bytes = 2'000'000;
  model::Config model = samples::small_model(4, false);
  hardware::Machine machine{samples::round_profile(4)};
};

// Points of a sweep begin with the plans and the times of points before.
TEST(Starts, SearchesAreAsGoodAsAlone) {
  Cache cache;
  std::vector<plan::Plan> starts;
  std::int64_t alone = 0, together = 0;
  int adapted = 0;
  for (const Search4& search :
       {Search4{}, Search4{.nodes = 2}, Search4{.batch = 16}, Search4{.memory_bytes = 1'800'000}}) {
    const Result expected = search.tune();
    const Result found = search.tune({.starts = starts, .cache = &cache});
    EXPECT_LE(found.best[0].seconds(), expected.best[0].seconds() * (1.0 + 1e-9));
    EXPECT_LE(found.search.gap, expected.search.gap + search.keys().gap + 1e-9);
    alone += expected.search.evaluations;
    together += found.search.evaluations;
    adapted += found.search.adapted > 0;
    starts = {found.best[0].plan};
  }
  EXPECT_LT(together, alone);
  EXPECT_GE(adapted, 2);
}

// Only the search of the same model finds its times in a cache.
TEST(Starts, CachesAreOfOneModel) {
  Cache cache;
  Search4 search;
  const auto expect_alike = [&] {
    const RankedPlan alone = search.tune().best[0];
    const RankedPlan found = search.tune({.cache = &cache}).best[0];
    EXPECT_EQ(found.seconds(), alone.seconds());
    EXPECT_EQ(found.prediction.iteration_s, alone.prediction.iteration_s);
  };
  expect_alike();
  search.model.optimizer = &model::muon;
  expect_alike();
  search.model.isolated = true, search.model.document_share = 0.25;
  expect_alike();
}

TEST(Starts, PlansAreAdapted) {
  Search4 search{.nodes = 2};
  const plan::Plan half = plan::equal_stages(
      search.model, 16, 2, {.devices_per_node = 2, .microbatch = 2, .dp = 2, .zero_level = 1});
  const auto adapted = [&](deck::SearchKeys keys, int batch) {
    std::vector<plan::Plan> found =
        plan::adapted(half, search.model, batch, search.cluster(), keys);
    for (const plan::Plan& plan : found) {
      EXPECT_NO_THROW(plan::check(plan, search.model, search.cluster()));
      EXPECT_EQ(plan.global_batch, batch);
    }
    return found;
  };
  const auto any = [](const std::vector<plan::Plan>& plans, const auto& holds) {
    return std::ranges::any_of(plans, holds);
  };
  const std::vector<plan::Plan> all = adapted({}, 16);
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(all[0].stages[0].dp, 4);  // with as large microbatches as before
  EXPECT_EQ(all[0].stages[0].microbatch, 2);
  EXPECT_EQ(all[0].microbatches, 2);
  EXPECT_TRUE(any(all, [](const plan::Plan& p) { return p.stages[0].tp == 2; }));
  EXPECT_TRUE(any(all, [](const plan::Plan& p) { return p.num_stages() == 4; }));
  EXPECT_TRUE(any(all, [](const plan::Plan& p) { return p.stages[0].ckpt_layers == 2; }));
  EXPECT_FALSE(adapted({}, 48).empty());
  const std::vector<plan::Plan> odd = adapted({}, 9);
  ASSERT_FALSE(odd.empty());
  EXPECT_EQ(odd[0].stages[0].dp, 1) << "2 and 4 do not divide the batch";
  EXPECT_TRUE(any(odd, [](const plan::Plan& p) { return p.stages[0].tp == 4; }));
  EXPECT_TRUE(any(odd, [](const plan::Plan& p) { return p.num_stages() == 4; }));
  EXPECT_TRUE(adapted({.stages = {8}}, 16).empty());
  EXPECT_TRUE(adapted({.zero_levels = {0}}, 16).empty());
  for (const plan::Plan& plan : adapted({.tp = {1}, .recompute = false}, 16))
    EXPECT_TRUE(plan.stages[0].tp == 1 && plan.stages[0].ckpt_layers == 0);
}

// --- searches that continue --------------------------------------------------------------------

State as_text_and_back(const State& state) {
  return state_schema().read(
      deck::Document::parse(state_schema().write(state), "the state of a test"));
}

/// A search that is stopped again and again.
struct Continued {
  Continued(const Search4& search, Cache& cache) {
    std::atomic<bool> stop = false;
    do {
      const State before = state;
      int kept = 0;
      stop = false;
      Options options{.stop = &stop, .cache = &cache, .keep_every_s = 0.0};
      if (calls++ > 0) options.state = &before;
      options.keep = [&](const State& now) {
        state = as_text_and_back(now);
        stop = stop || ++kept == 4;
      };
      found.reset();
      try {
        found = search.tune(options);
      } catch (const Infeasible&) {  // no plan yet
        continue;
      }
      add(*found);
    } while ((!found || found->search.interrupted) && calls < 100);
  }

  /// Neither the best plan nor the bound gets worse; a plan's first microbatches tell its time.
  void add(const Result& result) {
    const double seconds = result.best[0].seconds();
    const double proven_s = seconds * (1.0 - result.search.gap);
    EXPECT_LE(seconds, best_s * (1.0 + 1e-3));
    EXPECT_GE(proven_s, bound_s * (1.0 - 1e-3));
    best_s = std::min(best_s, seconds);
    bound_s = std::max(bound_s, proven_s);
    programs += int(result.search.dynamic_programs);
  }

  State state;
  std::optional<Result> found;
  int calls = 0, programs = 0;
  double best_s = infinity, bound_s = 0.0;
};

// Some plans that the formulas let fit do not, so strategies are excluded.
TEST(State, ContinuedSearchesFindTheSame) {
  const Search4 search{
      .nodes = 2, .batch = 16, .memory_bytes = 2'500'000, .model = samples::small_model(6, false)};
  Cache cache;
  const Result whole = search.tune({.cache = &cache});
  const Continued continued(search, cache);
  ASSERT_TRUE(continued.found);
  EXPECT_GT(continued.calls, 3);
  EXPECT_FALSE(continued.state.searcher.excluded.empty());
  EXPECT_FALSE(continued.found->search.cut_short);
  EXPECT_LE(continued.best_s, whole.best[0].seconds() * (1.0 + 1e-3));
  EXPECT_LT(continued.programs, int(whole.search.dynamic_programs) * 3 / 2);
  // A search that is done finds its plan at once.
  const Result again = search.tune({.cache = &cache, .state = &continued.state});
  EXPECT_EQ(again.search.dynamic_programs, 0);
  EXPECT_EQ(again.best[0].plan, continued.found->best[0].plan);
}

TEST(State, OthersAreRefused) {
  const Search4 search{.nodes = 2};
  Cache cache;
  State state;
  search.tune({.cache = &cache, .keep = [&](const State& now) { state = now; }});
  const auto refused = [&](const auto& change) {
    State changed = state;
    change(changed);
    try {
      search.tune({.cache = &cache, .state = &changed});
    } catch (const Error& error) {
      return error.failure() == Failure::input;
    }
    return false;
  };
  ASSERT_FALSE(state.simulated.empty());
  const auto of_config = std::ranges::find_if(
      state.simulated, [](const State::Simulated& one) { return one.config >= 0; });
  ASSERT_NE(of_config, state.simulated.end());
  const auto i = std::size_t(of_config - state.simulated.begin());
  EXPECT_TRUE(refused([](State& s) { s.searcher.steps.pop_back(); }));
  EXPECT_TRUE(refused([](State& s) { s.other_orders.bounds_s.push_back(1.0); }));
  EXPECT_TRUE(refused([&](State& s) { s.simulated[i].config = 1 << 30; }));
  EXPECT_TRUE(refused([&](State& s) { s.simulated[i].points.pop_back(); }));
  EXPECT_TRUE(refused([&](State& s) { s.simulated[i].points[0] = 1e9; }));
  EXPECT_TRUE(refused([&](State& s) { s.simulated[i].points[3] = 0.5; }));
  EXPECT_TRUE(refused([&](State& s) { s.simulated[i].plan.stages.clear(); }));
  EXPECT_TRUE(refused([&](State& s) { s.climbed.push_back({}); }));
}

}  // namespace
}  // namespace brume::tuner
