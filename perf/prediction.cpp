/// @file How well the simulation predicts: plans of every kind, predicted and measured in one run.
///
///   mpirun -n 1|2|4 perf_prediction [rounds [part of the plans' names]]
///
/// The machine is profiled in turn with the plans, so that both see it as it is then. Prints the
/// machine's interference, each plan's predicted and measured iteration time, the median error, the
/// noise floor (each tenth plan is measured twice), the rank correlation over plans that differ by
/// more than it, and what the tuner's choice takes: measured again beside the fastest plans,
/// because the least of many noisy figures is too small. On devices also the peak of memory,
/// predicted by the formulas and taken from the device.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "analyzer/analyzer.hpp"
#include "base/text.hpp"
#include "comm/session.hpp"
#include "device/device.hpp"
#include "kernels/types.hpp"
#include "measure.hpp"
#include "planned.hpp"
#include "prediction_plans.hpp"
#include "schedule/compile.hpp"
#include "schedule/simulate.hpp"
#include "tuner/tuner.hpp"

namespace {

using namespace brume;

constexpr std::size_t twin_every = 10;
constexpr std::size_t finalists = 5;

model::Config bench_model() {
  if (device::on_device())
    return {.num_layers = 24,
            .hidden_size = 1024,
            .num_heads = 16,
            .ffn_size = 4096,
            .seq_len = 2048,
            .vocab_size = 50257,
            .precision = model::Precision::bf16};
  return {.num_layers = 6,
          .hidden_size = 256,
          .num_heads = 8,
          .ffn_size = 1024,
          .seq_len = 128,
          .vocab_size = 4096};
}

/// Places of the values, the least one's first.
std::vector<std::size_t> ascending(const std::vector<double>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return values[i]; });
  return order;
}

std::vector<double> ranks_of(const std::vector<double>& values) {
  const std::vector<std::size_t> order = ascending(values);
  std::vector<double> ranks(values.size());
  for (std::size_t i = 0; i < order.size(); ++i) ranks[order[i]] = double(i);
  return ranks;
}

/// Spearman's rank correlation.
double rank_correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const std::vector<double> x = ranks_of(a), y = ranks_of(b);
  double squares = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) squares += (x[i] - y[i]) * (x[i] - y[i]);
  const auto n = double(x.size());
  return 1.0 - 6.0 * squares / (n * (n * n - 1.0));
}

/// Plans of which each takes longer than the one before by more than `noise`, as a share.
std::vector<std::size_t> distinct(const std::vector<double>& measured, double noise) {
  std::vector<std::size_t> kept;
  for (std::size_t i : ascending(measured))
    if (kept.empty() || measured[i] > (1.0 + noise) * measured[kept.back()]) kept.push_back(i);
  return kept;
}

/// A number of a plan's stages: once where all have the same, else "2/4".
std::string of_stages(const plan::Plan& plan, int plan::Stage::*number) {
  std::vector<int> numbers;
  for (const plan::Stage& stage : plan.stages) numbers.push_back(stage.*number);
  if (std::ranges::count(numbers, numbers.front()) == std::ssize(numbers)) numbers.resize(1);
  return fmt::format("{}", fmt::join(numbers, "/"));
}

std::string described(const plan::Plan& plan) {
  const plan::Stage& s = plan.stages[0];
  std::string text =
      fmt::format("pp {} dp {} tp {} b {}", plan.num_stages(), of_stages(plan, &plan::Stage::dp),
                  of_stages(plan, &plan::Stage::tp), of_stages(plan, &plan::Stage::microbatch));
  const std::string layers = of_stages(plan, &plan::Stage::layers);
  if (layers.find('/') != std::string::npos) text += " layers " + layers;
  const auto add = [&](const char* what, double value) {
    if (value > 0.0) text += fmt::format(" {} {:g}", what, value);
  };
  if (plan.order.run_ahead > 1) add("ahead", plan.order.run_ahead);
  add("zero", s.zero_level);
  add("ckpt", s.ckpt_layers);
  add("w", s.weight_offload_ratio);
  add("g", s.grad_offload_ratio);
  add("o", s.optim_offload_ratio);
  add("a", s.act_offload_ratio);
  return text;
}

perf::Measurement predicted(const plan::Plan& plan, const model::Config& model,
                            const hardware::Profile& profile) {
  const analyzer::Prediction formulas = analyzer::analyze(plan, model, profile);
  return {schedule::simulate(schedule::compile_all(plan, model), plan, model, profile).iteration_s,
          double(std::ranges::max(formulas.stages, {}, &analyzer::StagePrediction::peak_bytes)
                     .peak_bytes())};
}

/// One line a plan. @return what it is predicted to take over what it takes
template <typename Format>
std::vector<double> print(const std::vector<plan::Plan>& all,
                          const std::vector<perf::Measurement>& predicted,
                          const std::vector<perf::Measurement>& measured,
                          double perf::Measurement::*figure, Format format) {
  Table table({"plan", "predicted", "measured", "predicted / measured"});
  std::vector<double> ratios;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double ours = predicted[i].*figure, theirs = measured[i].*figure;
    ratios.push_back(ours / theirs);
    table.add({described(all[i]), format(ours), format(theirs), fmt::format("{:.3f}", ratios[i])});
  }
  fmt::print("{}", table.text());
  return ratios;
}

double median_error(std::vector<double> ratios) {
  for (double& ratio : ratios) ratio = std::abs(ratio - 1.0);
  return median(ratios);
}

/// Of the first `count` plans.
std::vector<double> iteration_times(const std::vector<perf::Measurement>& measured,
                                    std::size_t count) {
  std::vector<double> times_s;
  for (std::size_t i = 0; i < count; ++i) times_s.push_back(measured[i].iteration_s);
  return times_s;
}

/// Rank correlation of plans that differ by more than what `twins` measured again differ by.
void print_order(const std::vector<perf::Measurement>& predicted,
                 const std::vector<perf::Measurement>& measured, std::size_t twins) {
  const std::vector<double> times_s = iteration_times(measured, predicted.size());
  double noise = 0.0;
  for (std::size_t i = 0; i < twins; ++i)
    noise = std::max(
        noise,
        std::abs(measured[predicted.size() + i].iteration_s / times_s[twin_every * i] - 1.0));
  std::vector<double> x, y;
  for (std::size_t i : distinct(times_s, noise))
    x.push_back(predicted[i].iteration_s), y.push_back(times_s[i]);
  fmt::print("noise {:.1f} %, rank correlation of {} plans that differ by more: {:.3f}\n",
             100.0 * noise, x.size(), rank_correlation(x, y));
}

std::vector<plan::Plan> fastest(const std::vector<plan::Plan>& all,
                                const std::vector<perf::Measurement>& measured) {
  const std::vector<std::size_t> order = ascending(iteration_times(measured, all.size()));
  std::vector<plan::Plan> plans;
  for (std::size_t i = 0; i < std::min(all.size(), finalists); ++i) plans.push_back(all[order[i]]);
  return plans;
}

plan::Plan tuners_choice(const model::Config& model, const hardware::Cluster& cluster,
                         const hardware::Profile& profile, const std::vector<int>& microbatches,
                         comm::Communicator& world) {
  deck::SearchKeys search;
  search.microbatch = microbatches;
  std::string chosen;
  if (world.rank() == 0)
    chosen =
        plan::text(tuner::tune(model, perf::global_batch, cluster, profile, search).best[0].plan);
  return plan::parse(comm::broadcast(world, chosen, 0), "plan");
}

/// How much slower each kind of work runs beside each other kind, as fitted to this machine's
/// co-runs.
void print_interference(const hardware::Profile& profile) {
  const std::array<const char*, hardware::num_resources> names{"compute", "communication",
                                                               "copies in", "copies out"};
  Table table({"slowed", "by compute", "communication", "copies in", "copies out"});
  const hardware::Interference fitted = profile.interference_model();
  for (std::size_t q = 0; q < names.size(); ++q) {
    std::vector<std::string> row{names[q]};
    for (double added : fitted.added[q]) row.push_back(fmt::format("{:.2f}", added));
    table.add(row);
  }
  fmt::print("{}\n", table.text());
}

void run(comm::Session& session, comm::Communicator& world, int rounds, const char* wanted) {
  const model::Config model = bench_model();
  const int ranks = world.size();
  const kernels::Runtime runtime(device::threads_per_rank(session.ranks_per_node()));
  const std::vector<int> microbatches{1, 2, 4};
  const auto profile_now = [&] {
    return perf::measured_profile(session, world, model, microbatches);
  };
  std::vector<plan::Plan> all = perf::plans(model, ranks);
  std::erase_if(all, [&](const plan::Plan& plan) {
    return described(plan).find(wanted) == std::string::npos;
  });

  std::vector<plan::Plan> measured_plans = all;
  for (std::size_t i = 0; i < all.size(); i += twin_every) measured_plans.push_back(all[i]);
  std::vector<hardware::Profile> profiles;
  const std::vector<perf::Measurement> measured = perf::measure(
      measured_plans, model, session, world, rounds, [&] { profiles.push_back(profile_now()); });
  const hardware::Profile profile = hardware::medians(profiles);
  std::vector<plan::Plan> finals = fastest(all, measured);
  finals.push_back(tuners_choice(model, perf::roomy_cluster(ranks), profile, microbatches, world));
  const std::vector<perf::Measurement> again =
      perf::measure(finals, model, session, world, 3 * rounds);
  if (world.rank() != 0) return;
  std::vector<perf::Measurement> expected;
  for (const plan::Plan& plan : all) expected.push_back(predicted(plan, model, profile));
  print_interference(profile);
  const std::vector<double> times =
      print(all, expected, measured, &perf::Measurement::iteration_s, format_seconds);
  fmt::print("{} plans: median error {:.1f} %, ", all.size(), 100.0 * median_error(times));
  print_order(expected, measured, measured_plans.size() - all.size());
  if (device::on_device()) {
    const std::vector<double> peaks =
        print(all, expected, measured, &perf::Measurement::device_bytes, format_bytes);
    fmt::print("peak memory: median error {:.1f} %\n", 100.0 * median_error(peaks));
  }
  const auto best = std::ranges::min_element(again, {}, &perf::Measurement::iteration_s);
  fmt::print("the tuner's choice ({}) takes {:.3f} of the best plan's time ({})\n\n",
             described(finals.back()), again.back().iteration_s / best->iteration_s,
             described(finals[std::size_t(best - again.begin())]));
}

}  // namespace

int main(int argc, char** argv) {
  comm::Session session;
  const auto world = session.world();
  device::use_device(session.node_rank(), world->size());
  run(session, *world, argc > 1 ? std::atoi(argv[1]) : 7, argc > 2 ? argv[2] : "");
}
