/// @file How near the analyzer's time of an iteration and that of its first microbatches come to
/// the simulation of all ranks, on random plans of models of real sizes for all profiles that come
/// with the program, and how long each of the three takes.
///
///   perf_pipeline [plans [seed]]
///
/// Prints how far the times are from the simulated ones, as shares of these, of all plans and of
/// parts of them: how far at most below and above, and the plan that each way is farthest off for.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "analyzer/analyzer.hpp"
#include "base/text.hpp"
#include "cluster_plans.hpp"
#include "plan/plan.hpp"
#include "schedule/compile.hpp"
#include "schedule/simulate.hpp"
#include "schedule/steady.hpp"

namespace {

using namespace brume;
using Clock = std::chrono::steady_clock;

constexpr int most_devices = 64;

/// What an iteration takes by each of the three ways, or what each of them takes to find that out.
struct Seconds {
  double analyzed = 0.0, steady = 0.0, simulated = 0.0;
};

/// @param took  what each way took is added to it
Seconds iteration_s(const test::ClusterPlan& sample, Seconds& took) {
  const auto timed = [](double& took_s, auto&& find) {
    const auto begin = Clock::now();
    const double found_s = find();
    took_s += std::chrono::duration<double>(Clock::now() - begin).count();
    return found_s;
  };
  Seconds found;
  found.analyzed = timed(took.analyzed, [&] {
    return analyzer::analyze(sample.plan, sample.model, sample.machine).iteration_s;
  });
  found.steady = timed(took.steady, [&] {
    return schedule::steady_time(sample.plan, sample.model, sample.machine);
  });
  found.simulated = timed(took.simulated, [&] {
    const auto programs = schedule::compile_all(sample.plan, sample.model, {.tight = false});
    return schedule::simulate(programs, sample.plan, sample.model, sample.machine).iteration_s;
  });
  return found;
}

/// @param errors  found / simulated - 1
void add_row(Table& table, const std::string& name, const std::vector<double>& errors) {
  std::vector<double> off;
  for (const double error : errors) off.push_back(std::abs(error));
  std::ranges::sort(off);
  const auto percent = [](double share) { return fmt::format("{:.2f} %", 100.0 * share); };
  const auto percentile = [&](double share) {
    return percent(off[std::size_t(share * double(off.size() - 1))]);
  };
  table.add({name, std::to_string(off.size()), percentile(0.5), percentile(0.9), percentile(0.99),
             percent(std::ranges::min(errors)), percent(std::ranges::max(errors))});
}

/// The plan that a way is farthest off for.
struct Worst {
  double error = 0.0;
  std::string sample;
};

void run(int plans, unsigned seed) {
  test::ClusterPlans samples(seed);
  Seconds took;
  std::map<std::string, std::vector<double>> errors;
  std::map<std::string, Worst> worst;
  for (int i = 0; i < plans; ++i) {
    const test::ClusterPlan sample = samples.next(most_devices);
    const Seconds found = iteration_s(sample, took);
    const auto add = [&](const std::string& way, double found_s) {
      const double error = found_s / found.simulated - 1.0;
      errors[way].push_back(error);
      errors[way + ", on " + sample.profile].push_back(error);
      errors[fmt::format("{}, run_ahead {}", way, sample.plan.order.run_ahead)].push_back(error);
      errors[way + (sample.equal_stages() ? ", equal stages" : ", unequal stages")].push_back(
          error);
      if (std::abs(error) < std::abs(worst[way].error)) return;
      worst[way] = {error,
                    fmt::format("plan {}, {}, {} layers of {}, sequences of {}: {} instead "
                                "of {}\n{}",
                                i, sample.name(), sample.model.num_layers, sample.model.hidden_size,
                                sample.model.seq_len, format_seconds(found_s),
                                format_seconds(found.simulated), plan::text(sample.plan))};
    };
    add("analyzer", found.analyzed);
    add("first microbatches", found.steady);
  }
  Table table({"off by", "plans", "median", "p90", "p99", "most below", "most above"});
  for (const auto& [name, of_name] : errors) add_row(table, name, of_name);
  for (const auto& [way, of_way] : worst)
    fmt::print("{} is farthest off for {}\n", way, of_way.sample);
  fmt::print("{}a plan takes {} to analyze, {} by its first microbatches, {} to simulate\n",
             table.text(), format_seconds(took.analyzed / plans),
             format_seconds(took.steady / plans), format_seconds(took.simulated / plans));
}

}  // namespace

int main(int argc, char** argv) {
  const int plans = argc > 1 ? std::atoi(argv[1]) : 500;
  if (plans < 1) {
    fmt::print(stderr, "usage: perf_pipeline [plans [seed]]\n");
    return 2;
  }
  run(plans, argc > 2 ? unsigned(std::atoi(argv[2])) : 1u);
}
