/// @file How well the simulation predicts: plans of every kind, predicted and measured in one run.
///
///   mpirun -n 1|2|4 perf_prediction [rounds]
///
/// Prints this machine's interference, each plan's predicted and measured iteration time, the
/// median error, the noise floor (each tenth plan is measured twice), the rank correlation over
/// plans that differ by more than it, and what the tuner would choose among them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "comm/session.hpp"
#include "kernels/types.hpp"
#include "measure.hpp"
#include "planned.hpp"
#include "schedule/compile.hpp"
#include "schedule/simulate.hpp"
#include "tuner/tuner.hpp"

namespace {

using namespace brume;

constexpr int global_batch = 16;
constexpr std::size_t twin_every = 10;

model::Config bench_model() {
  return {.num_layers = 6,
          .hidden_size = 256,
          .num_heads = 8,
          .ffn_size = 1024,
          .seq_len = 128,
          .vocab_size = 4096};
}

/// Every way to split over `ranks`, with each memory knob alone and all together. Stages run
/// further ahead in every other plan.
std::vector<plan::Plan> plans(const model::Config& model, int ranks) {
  using Change = void (*)(plan::Stage&);
  const std::vector<Change> knobs{
      [](plan::Stage&) {},
      [](plan::Stage& s) { s.ckpt_layers = s.layers; },
      [](plan::Stage& s) { s.optim_offload_ratio = 1.0; },
      [](plan::Stage& s) { s.act_offload_ratio = 1.0; },
      [](plan::Stage& s) { s.weight_offload_ratio = 1.0; },
      [](plan::Stage& s) { s.grad_offload_ratio = 1.0; },
      [](plan::Stage& s) { s.zero_level = 1; },
      [](plan::Stage& s) { s.zero_level = 2; },
      [](plan::Stage& s) { s.zero_level = 3; },
      [](plan::Stage& s) {
        s.zero_level = 1;
        s.ckpt_layers = s.layers / 2;
        s.optim_offload_ratio = s.act_offload_ratio = 0.5;
      },
      [](plan::Stage& s) {
        s.zero_level = 3;
        s.ckpt_layers = s.layers;
        s.weight_offload_ratio = s.grad_offload_ratio = 0.5;
        s.optim_offload_ratio = s.act_offload_ratio = 1.0;
      },
  };
  std::vector<plan::Plan> all;
  for (int stages = 1; stages <= std::min(ranks, 3); ++stages)
    for (int tp = 1; tp * stages <= ranks; ++tp)
      for (int b : {1, 4}) {
        const int dp = ranks / (stages * tp);
        if (stages * tp * dp != ranks || model.num_layers % stages || model.num_heads % tp ||
            global_batch % (dp * b))
          continue;
        for (const Change& knob : knobs) {
          plan::Plan plan = plan::equal_stages(model, global_batch, stages,
                                               {.microbatch = b, .dp = dp, .tp = tp});
          std::ranges::for_each(plan.stages, [&](plan::Stage& stage) {
            knob(stage);
            if (dp == 1) stage.zero_level = 0;  // means nothing there
          });
          if (stages > 1 && all.size() % 2 == 1) plan.run_ahead = 2;
          if (std::ranges::find(all, plan) == all.end()) all.push_back(plan);
        }
      }
  return all;
}

std::vector<double> ranks_of(const std::vector<double>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return values[i]; });
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
  std::vector<std::size_t> order(measured.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return measured[i]; });
  std::vector<std::size_t> kept;
  for (std::size_t i : order)
    if (kept.empty() || measured[i] > (1.0 + noise) * measured[kept.back()]) kept.push_back(i);
  return kept;
}

std::string described(const plan::Plan& plan) {
  const plan::Stage& s = plan.stages[0];
  std::string text =
      fmt::format("pp {} dp {} tp {} b {}", plan.num_stages(), s.dp, s.tp, s.microbatch);
  const auto add = [&](const char* what, double value) {
    if (value > 0.0) text += fmt::format(" {} {:g}", what, value);
  };
  if (plan.run_ahead > 1) add("ahead", plan.run_ahead);
  add("zero", s.zero_level);
  add("ckpt", s.ckpt_layers);
  add("w", s.weight_offload_ratio);
  add("g", s.grad_offload_ratio);
  add("o", s.optim_offload_ratio);
  add("a", s.act_offload_ratio);
  return text;
}

double predicted_s(const plan::Plan& plan, const model::Config& model,
                   const hardware::Profile& profile) {
  return schedule::simulate(schedule::compile_all(plan, model), plan, model, profile).iteration_s;
}

void print(const std::vector<plan::Plan>& all, const std::vector<double>& predicted,
           const std::vector<double>& measured, std::size_t twins) {
  Table table({"plan", "predicted", "measured", "predicted / measured"});
  std::vector<double> errors;
  for (std::size_t i = 0; i < all.size(); ++i) {
    table.add({described(all[i]), format_seconds(predicted[i]), format_seconds(measured[i]),
               fmt::format("{:.3f}", predicted[i] / measured[i])});
    errors.push_back(std::abs(predicted[i] / measured[i] - 1.0));
  }
  double noise = 0.0;
  for (std::size_t i = 0; i < twins; ++i)
    noise = std::max(noise, std::abs(measured[all.size() + i] / measured[twin_every * i] - 1.0));
  std::vector<double> x, y;
  for (std::size_t i : distinct({measured.begin(), measured.end() - std::ptrdiff_t(twins)}, noise))
    x.push_back(predicted[i]), y.push_back(measured[i]);
  fmt::print(
      "{}{} plans: median error {:.1f} %, noise {:.1f} %, rank correlation of {} plans that differ "
      "by more: {:.3f}\n",
      table.text(), all.size(), 100.0 * median(errors), 100.0 * noise, x.size(),
      rank_correlation(x, y));
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

void run(comm::Session& session, comm::Communicator& world, int rounds) {
  const model::Config model = bench_model();
  const int ranks = world.size();
  const int threads = device::threads_per_rank(session.ranks_per_node());
  const kernels::Runtime runtime(threads);
  const std::vector<int> microbatches{1, 2, 4};
  const hardware::Cluster cluster = perf::roomy_cluster(ranks);
  const hardware::Profile profile = perf::measured_profile(session, world, model, microbatches);

  std::vector<plan::Plan> all = plans(model, ranks);
  deck::SearchKeys search;
  search.microbatch = microbatches;
  std::string chosen;
  if (world.rank() == 0)
    chosen = plan::text(tuner::tune(model, global_batch, cluster, profile, search).best[0].plan);
  all.push_back(plan::parse(comm::broadcast(world, chosen, 0), "plan"));
  std::vector<double> predicted;
  for (const plan::Plan& plan : all) predicted.push_back(predicted_s(plan, model, profile));

  std::vector<plan::Plan> measured_plans = all;
  for (std::size_t i = 0; i < all.size(); i += twin_every) measured_plans.push_back(all[i]);
  const std::vector<double> measured =
      perf::iteration_times(measured_plans, model, threads, world, rounds);
  if (world.rank() != 0) return;
  print_interference(profile);
  print(all, predicted, measured, measured_plans.size() - all.size());
  const double best_s = *std::min_element(measured.begin(), measured.end());
  fmt::print("the tuner's choice ({}) takes {:.3f} of the best plan's time\n\n",
             described(all.back()), measured[all.size() - 1] / best_s);
}

}  // namespace

int main(int argc, char** argv) {
  comm::Session session;
  const auto world = session.world();
  run(session, *world, argc > 1 ? std::atoi(argv[1]) : 7);
}
