#include "tuner/tuner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "base/error.hpp"
#include "base/text.hpp"
#include "placement.hpp"
#include "schedule/simulate.hpp"
#include "search.hpp"

namespace brume::tuner {
namespace {

/// More plans of one shape would only differ in knobs that hardly matter.
constexpr int most_plans_of_a_frame = 2;
/// Of larger plans two ranks of each stage are placed and none is simulated.
constexpr int most_simulated_ranks = 64;

std::int64_t peak_bytes(const analyzer::StagePrediction& stage) {
  return std::max(stage.peak_forward_bytes, stage.peak_backward_bytes);
}

/// The model's fastest plans that can be placed, simulated; fastest simulation first.
std::vector<Candidate> best_plans(const Question& question, Searcher& searcher, Search& statistics,
                                  const Stopwatch& watch) {
  std::vector<Candidate> best;
  std::map<std::size_t, int> of_frame;
  const auto wanted = std::size_t(std::max(1, question.keys.simulate_top));
  while (best.size() < wanted) {
    if (!best.empty() && watch.seconds() > question.keys.time_limit_s) break;
    const std::optional<Found> found = searcher.next();
    if (!found) break;
    const bool few = found->plan.devices() <= most_simulated_ranks;
    Placement placed = (few ? place : sample)(found->plan, question.model, question.cluster);
    if (placed.misfit) {
      ++statistics.struck;
      searcher.strike(*found, *placed.misfit);
      continue;
    }
    if (best.empty()) statistics.confirmed = found->confirmed;
    if (best.empty())
      statistics.gap = std::max(0.0, (found->iteration_s - found->bound_s) / found->iteration_s);
    const plan::Plan& plan = found->plan;
    best.push_back(
        {.plan = plan,
         .prediction = analyzer::analyze(plan, question.model, question.profile),
         .simulated_s = few ? std::optional(schedule::simulate(placed.programs, plan,
                                                               question.model, question.profile)
                                                .iteration_s)
                            : std::nullopt,
         .placed_device_bytes = placed.device_bytes,
         .placed_host_bytes = placed.host_bytes});
    if (++of_frame[found->frame] < most_plans_of_a_frame)
      searcher.strike(*found, 0);
    else
      searcher.drop(*found);
  }
  std::ranges::stable_sort(best, {}, &Candidate::seconds);
  return best;
}

// --- what would be without
// ------------------------------------------------------------------------

/// A knob: how to search without it, and whether a stage uses it.
struct Knob {
  const char* name;
  std::function<void(deck::SearchKeys&)> forbid;
  std::function<bool(const plan::Plan&, const plan::Stage&)> used;
};

const std::vector<Knob>& knobs() {
  using deck::SearchKeys;
  using plan::Plan, plan::Stage;
  static const std::vector<Knob> all{
      {"recomputation", [](SearchKeys& k) { k.recompute = false; },
       [](const Plan&, const Stage& s) { return s.ckpt_layers > 0; }},
      {"ZeRO", [](SearchKeys& k) { k.zero_levels = {0}; },
       [](const Plan&, const Stage& s) { return s.zero_level > 0; }},
      {"optimizer offload", [](SearchKeys& k) { k.optim_offload = {0.0}; },
       [](const Plan&, const Stage& s) { return s.optim_offload_ratio > 0.0; }},
      {"activation offload", [](SearchKeys& k) { k.act_offload = {0.0}; },
       [](const Plan&, const Stage& s) { return s.act_offload_ratio > 0.0; }},
      {"pipeline parallelism", [](SearchKeys& k) { k.stages = {1}; },
       [](const Plan& p, const Stage&) { return p.num_stages() > 1; }},
      {"tensor parallelism", [](SearchKeys& k) { k.tp = {1}; },
       [](const Plan&, const Stage& s) { return s.tp > 1; }},
      {"data parallelism", [](SearchKeys& k) { k.dp = {1}; },
       [](const Plan&, const Stage& s) { return s.dp > 1; }},
  };
  return all;
}

/// The model's fastest plan whose stages can be placed [s].
std::optional<double> fastest_placed(const Question& question, Grid& grid, const Stopwatch& watch) {
  Searcher searcher(question, grid, watch);
  while (const std::optional<Found> found = searcher.next()) {
    const std::optional<int> misfit = sample(found->plan, question.model, question.cluster).misfit;
    if (!misfit) return found->iteration_s;
    searcher.strike(*found, *misfit);
  }
  return std::nullopt;
}

/// Only knobs that the best plan uses: without another one it stays what it is.
std::vector<Ablation> ablations(const Question& question, Grid& grid, const Candidate& best,
                                const Stopwatch& watch) {
  std::vector<Ablation> found;
  for (const Knob& knob : knobs()) {
    const auto uses = [&](const plan::Stage& stage) { return knob.used(best.plan, stage); };
    if (std::ranges::none_of(best.plan.stages, uses)) continue;
    if (watch.seconds() > question.keys.time_limit_s) break;
    Question without = question;
    knob.forbid(without.keys);
    found.push_back({knob.name, fastest_placed(without, grid, watch)});
  }
  return found;
}

/// The search without savings. Saving memory costs time, so it holds the fastest plan of a machine
/// without limits.
deck::SearchKeys saving_nothing(deck::SearchKeys keys) {
  const auto least = [](std::vector<double>& ratios) {
    if (!ratios.empty()) ratios = {*std::ranges::min_element(ratios)};
  };
  keys.recompute = false;
  for (auto* ratios :
       {&keys.weight_offload, &keys.grad_offload, &keys.optim_offload, &keys.act_offload})
    least(*ratios);
  return keys;
}

/// The fastest plan of an unlimited machine, when it does not fit this one.
std::string nearest_infeasible(const Question& question, Grid& grid, const Stopwatch& watch) {
  Question unlimited = question;
  unlimited.cluster.memory_bytes = std::numeric_limits<std::int64_t>::max();
  unlimited.cluster.host_memory_bytes = std::numeric_limits<std::int64_t>::max();
  unlimited.keys = saving_nothing(question.keys);
  const std::optional<Found> found = Searcher(unlimited, grid, watch).next();
  if (!found) return {};
  const auto prediction = analyzer::analyze(found->plan, question.model, question.profile);
  const auto fullest = std::ranges::max_element(prediction.stages, {}, peak_bytes);
  const std::int64_t missing = peak_bytes(*fullest) - question.cluster.memory_bytes;
  if (missing <= 0) return {};
  return fmt::format(
      "{} an iteration if each device had {} ({} bytes) more; stage {} is the fullest\n{}",
      format_seconds(found->iteration_s), format_bytes(double(missing)), missing,
      fullest - prediction.stages.begin(), plan::table(found->plan));
}

[[noreturn]] void nothing_fits(const Question& question, Grid& grid) {
  const std::optional<plan::Plan> smallest = smallest_plan(question, grid);
  if (!smallest)
    throw Error(
        Failure::infeasible,
        "no plan: stages, dp, tp and microbatch of [search] leave no way to split {} layers, a "
        "global batch of {} and {} x {} devices",
        question.model.num_layers, question.global_batch, question.cluster.nodes,
        question.cluster.devices_per_node);
  const Placement placed = place(*smallest, question.model, question.cluster);
  constexpr double gib = 1024.0 * 1024.0 * 1024.0;
  const std::int64_t missing = placed.device_bytes - question.cluster.memory_bytes;
  throw Error(
      Failure::infeasible,
      "no plan fits: the one that needs least takes {} ({} bytes) per device, {} bytes more "
      "than cluster.memory_gib = {:g} allows; memory_gib = {:.4f} would fit (host: {} a node "
      "of {})\n{}",
      format_bytes(double(placed.device_bytes)), placed.device_bytes, missing,
      double(question.cluster.memory_bytes) / gib,
      std::ceil(double(placed.device_bytes) / gib * 1e4) / 1e4,
      format_bytes(double(placed.host_bytes)),
      format_bytes(double(question.cluster.host_memory_bytes)), plan::table(*smallest));
}

}  // namespace

Result tune(const model::Config& model, int global_batch, const hardware::Cluster& cluster,
            const hardware::Profile& profile, const deck::SearchKeys& search) {
  for (int level : search.zero_levels)
    require(level == 0 || level == 1, Failure::input,
            "search.zero_levels: 0 and 1 are the levels that execute, found {}", level);
  const Stopwatch watch;
  const Question question{model, global_batch, cluster, profile, search};
  Grid grid(model, profile);
  Searcher searcher(question, grid, watch);
  Result result;
  result.best = best_plans(question, searcher, result.search, watch);
  if (result.best.empty()) nothing_fits(question, grid);

  searcher.add_to(result.search);
  result.ablations = ablations(question, grid, result.best[0], watch);
  result.nearest_infeasible = nearest_infeasible(question, grid, watch);
  result.search.seconds = watch.seconds();
  return result;
}

}  // namespace brume::tuner
