/// @file How near the analyzer's time of an iteration and that of its first microbatches come to
/// the simulation of all ranks, on random plans of models of real sizes for all profiles that come
/// with the program, and how long each of the three takes.
///
///   perf_pipeline [plans [seed]]
///
/// Prints how far the times are from the simulated ones, as shares of these, of all plans and of
/// parts of them.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "analyzer/analyzer.hpp"
#include "base/text.hpp"
#include "cluster_plans.hpp"
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

void add_row(Table& table, const std::string& name, std::vector<double> off) {
  std::ranges::sort(off);
  const auto percentile = [&](double share) {
    return fmt::format("{:.2f} %", 100.0 * off[std::size_t(share * double(off.size() - 1))]);
  };
  table.add({name, std::to_string(off.size()), percentile(0.5), percentile(0.9), percentile(0.99),
             percentile(1.0)});
}

void run(int plans, unsigned seed) {
  test::ClusterPlans samples(seed);
  Seconds took;
  std::map<std::string, std::vector<double>> off;
  for (int i = 0; i < plans; ++i) {
    const test::ClusterPlan sample = samples.next(most_devices);
    const Seconds found = iteration_s(sample, took);
    const auto add = [&](const std::string& way, double found_s) {
      const double error = std::abs(found_s / found.simulated - 1.0);
      off[way].push_back(error);
      off[way + ", on " + sample.profile].push_back(error);
      off[fmt::format("{}, run_ahead {}", way, sample.plan.run_ahead)].push_back(error);
      off[way + (sample.equal_stages() ? ", equal stages" : ", unequal stages")].push_back(error);
    };
    add("analyzer", found.analyzed);
    add("first microbatches", found.steady);
  }
  Table table({"off by", "plans", "median", "p90", "p99", "max"});
  for (const auto& [name, errors] : off) add_row(table, name, errors);
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
