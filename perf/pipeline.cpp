/// @file How well the analyzer predicts the simulation, on random plans of models of real sizes for
/// all profiles that come with the program, and how long both take.
///
///   perf_pipeline [plans [seed]]
///
/// Prints how far predicted iteration times are from simulated ones, of all plans and of parts of
/// them: a share of the simulated time.
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

namespace {

using namespace brume;
using Clock = std::chrono::steady_clock;

constexpr int most_devices = 32;

struct Seconds {
  double predicting = 0.0, simulating = 0.0;
};

/// Predicted over simulated iteration time. @param took  what both took is added to it
double ratio(const test::ClusterPlan& sample, Seconds& took) {
  const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  const auto begin = Clock::now();
  const double predicted_s =
      analyzer::analyze(sample.plan, sample.model, sample.machine).iteration_s;
  const auto middle = Clock::now();
  const auto programs = schedule::compile_all(sample.plan, sample.model, {.tight = false});
  const double simulated_s =
      schedule::simulate(programs, sample.plan, sample.model, sample.machine).iteration_s;
  took.predicting += seconds(middle - begin);
  took.simulating += seconds(Clock::now() - middle);
  return predicted_s / simulated_s;
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
  std::vector<double> all;
  std::map<std::string, std::vector<double>> parts;
  for (int i = 0; i < plans; ++i) {
    const test::ClusterPlan sample = samples.next(most_devices);
    const double off = std::abs(ratio(sample, took) - 1.0);
    all.push_back(off);
    parts["on " + sample.profile].push_back(off);
    parts[fmt::format("run_ahead {}", sample.plan.run_ahead)].push_back(off);
    parts[sample.equal_stages() ? "stages: equal" : "stages: unequal"].push_back(off);
  }
  Table table({"plans", "number", "median", "p90", "p99", "max"});
  add_row(table, "all", all);
  for (const auto& [name, off] : parts) add_row(table, name, off);
  fmt::print("{}a plan takes {} to predict, {} to simulate\n", table.text(),
             format_seconds(took.predicting / plans), format_seconds(took.simulating / plans));
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
