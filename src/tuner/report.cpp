/// @file Report of a search, for people.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/text.hpp"
#include "plan/knobs.hpp"
#include "tuner/tuner.hpp"
#include "why.hpp"

namespace brume::tuner {
namespace {

/// "8" or, where stages differ, "8 x3, 4".
template <typename T>
std::string of_stages(const plan::Plan& plan, T plan::Stage::*member) {
  std::string all;
  for (std::size_t first = 0; first < plan.stages.size();) {
    std::size_t end = first;
    while (end < plan.stages.size() && plan.stages[end].*member == plan.stages[first].*member)
      ++end;
    const bool whole = end - first == plan.stages.size();
    all += fmt::format("{}{}", all.empty() ? "" : ", ", plan.stages[first].*member);
    if (!whole && end - first > 1) all += fmt::format(" x{}", end - first);
    first = end;
  }
  return all;
}

/// " on fast x2, slow", where groups have names.
std::string on_groups(const plan::Plan& plan) {
  return plan.stages[0].group.empty() ? "" : " on " + of_stages(plan, &plan::Stage::group);
}

/// Line that splits the iteration's time into the slowest stage's work and the rest.
std::string time_lines(const RankedPlan& best) {
  const auto slowest = std::ranges::max_element(
      best.prediction.stages, {},
      [](const analyzer::StagePrediction& stage) { return stage.time.stable_s(); });
  const double slowest_s = slowest->time.stable_s();
  const double busy_s = best.plan.microbatches * slowest_s;
  return fmt::format(
      "time    {} predicted, {}: stage {} works {} ({} x {}), {} beside it for fill, messages, "
      "update and reduction\n",
      format_seconds(best.prediction.iteration_s),
      best.simulated_s ? format_seconds(*best.simulated_s) + " simulated" : "too large to simulate",
      slowest - best.prediction.stages.begin(), format_seconds(busy_s), best.plan.microbatches,
      format_seconds(slowest_s), format_seconds(best.prediction.iteration_s - busy_s));
}

std::string memory_lines(const RankedPlan& best, const hardware::Cluster& cluster) {
  const auto share = [](std::int64_t part, std::int64_t whole) {
    return whole > 0 ? 100.0 * double(part) / double(whole) : 0.0;
  };
  std::string lines;
  for (std::size_t i = 0; i < cluster.groups.size(); ++i) {
    const hardware::NodeGroup& group = cluster.groups[i];
    const GroupMemory& held = best.placed[i];
    const std::string of = group.name.empty() ? "" : group.name + ": ";
    lines += held.device_bytes == 0
                 ? fmt::format("memory  {}not used\n", of)
                 : fmt::format(
                       "memory  {}{} of {} per device placed ({:.1f} %), {} of {} host memory per "
                       "node{}\n",
                       of, format_bytes(double(held.device_bytes)),
                       format_bytes(double(group.memory_bytes)),
                       share(held.device_bytes, group.memory_bytes),
                       format_bytes(double(held.host_bytes)),
                       format_bytes(double(group.host_memory_bytes)),
                       group.disk_bytes > 0
                           ? fmt::format(", {} of {} disk", format_bytes(double(held.disk_bytes)),
                                         format_bytes(double(group.disk_bytes)))
                           : "");
  }
  if (best.closed_form_bytes)
    lines += fmt::format("memory  the closed form says {} of the fullest stage\n",
                         format_bytes(double(*best.closed_form_bytes)));
  return lines;
}

std::string ended_by(const Search& search) {
  return tuner::ended_by(search.interrupted, search.limit_s);
}

std::string ablation_lines(const Result& result) {
  if (result.ablations.empty() && result.untried.empty())
    return "why     nothing to leave out: the plan uses no parallelism and saves no memory\n";
  const double base_s = result.best[0].seconds();
  std::string text;
  for (const Ablation& ablation : result.ablations)
    text += ablation.iteration_s ? fmt::format("why     without {}: at most {} ({:+.1f} %)\n",
                                               ablation.knob, format_seconds(*ablation.iteration_s),
                                               100.0 * (*ablation.iteration_s / base_s - 1.0))
                                 : fmt::format("why     without {}: nothing fits\n", ablation.knob);
  if (!result.untried.empty())
    text += fmt::format("why     not tried, for {} ended the search: plans without {}\n",
                        ended_by(result.search), fmt::join(result.untried, ", "));
  return text;
}

/// Line that states which part of the search was cut short.
std::string limit_line(const Search& search) {
  if (!search.cut_short)
    return search.interrupted ? "limit   interrupted by a signal when the plan was found\n" : "";
  return fmt::format(
      "limit   {} ended the search{}{}\n", ended_by(search),
      search.gap > 0.0 ? "" : ": fewer plans were simulated than search.simulate_top asks for",
      search.interrupted ? "" : "; raise it");
}

/// How much faster another plan may be: by the model's bound, where that says more than what
/// computing alone takes.
std::string bounds_text(const Search& search, double best_s) {
  const double least = 1.0 - search.least_work_s / best_s;
  return fmt::format(
      "no plan{} by more than {} in a simulation: computing alone takes {}",
      search.bounds_all && search.gap < least
          ? fmt::format("{} is faster by more than {} by the model's bound{}, and none",
                        search.other_orders > 0 ? " of 1F1B" : "", format_percent(search.gap),
                        search.confirmed ? ", confirmed by GLPK" : "")
          : " is faster",
      format_percent(least), format_seconds(search.least_work_s));
}

std::string faster_lines(const Result& result) {
  std::string lines;
  for (const Faster& other : result.faster)
    lines += fmt::format("faster  {} = {}: {} ({:+.1f} %)\n", other.key, other.value,
                         format_seconds(other.iteration_s),
                         100.0 * (other.iteration_s / result.best[0].seconds() - 1.0));
  return lines;
}

std::string next_best(const Result& result, std::size_t columns) {
  if (result.best.size() < 2) return {};
  Table table({"next", "predicted", "simulated", "device memory", "host memory", "plan"});
  for (std::size_t i = 0; i < result.best.size(); ++i) {
    const RankedPlan& c = result.best[i];
    const double slower = c.seconds() / result.best[0].seconds() - 1.0;
    const int digits = slower < 9.99 ? 1 : 0;  // so that the table fits 80 columns
    table.add({i == 0 ? "best" : fmt::format("{:+.{}f} %", 100.0 * slower, digits),
               format_seconds(c.prediction.iteration_s),
               c.simulated_s ? format_seconds(*c.simulated_s) : "-",
               format_bytes(double(c.placed_device_bytes())),
               format_bytes(double(c.placed_host_bytes())), summary(c.plan)});
  }
  return table.text(columns);
}

}  // namespace

std::string summary(const plan::Plan& plan) {
  using plan::Stage;
  int recomputed = 0, stored = 0;
  Stage most;
  for (const Stage& stage : plan.stages) {
    recomputed += stage.ckpt_layers;
    stored += stage.stored_layers;
    most.zero_level = std::max(most.zero_level, stage.zero_level);
    most.replicas = std::max(most.replicas, stage.replicas);
    for (const plan::Share& share : plan::shares)
      most.*share.ratio = std::max(most.*share.ratio, stage.*share.ratio);
  }
  const std::string disk = plan::uses_disk(most) ? "  disk " + plan::ratios(most, true) : "";
  const std::string host =
      most.host_update_ratio > 0.0 ? fmt::format("  host update {:g}", most.host_update_ratio) : "";
  const std::string replicas = most.replicas > 1 ? fmt::format("  replicas {}", most.replicas) : "";
  const std::string kept = stored > 0 ? fmt::format("  stored {}", stored) : "";
  const std::string order =
      plan.order.is_1f1b() ? "" : fmt::format(" ({})", plan::order_text(plan));
  const auto if_used = [&](const char* name, int Stage::*degree) {
    const auto uses = [&](const plan::Stage& s) { return s.*degree > 1; };
    return std::ranges::any_of(plan.stages, uses)
               ? fmt::format("  {} {}", name, of_stages(plan, degree))
               : "";
  };
  return fmt::format(
      "S {}{}{}  dp {}{}  tp {}{}  b {}  G {}  ZeRO {}{}  recomputed {}{}  offload {}{}{}",
      plan.pipeline_size(), order, on_groups(plan), of_stages(plan, &Stage::dp),
      if_used("cp", &Stage::cp), of_stages(plan, &Stage::tp), if_used("ep", &Stage::ep),
      of_stages(plan, &Stage::microbatch), plan.microbatches, most.zero_level, replicas, recomputed,
      kept, plan::ratios(most, false), disk, host);
}

std::string report(const Result& result, const hardware::Cluster& cluster, std::size_t columns) {
  const RankedPlan& best = result.best[0];
  std::string text = plan::table(best.plan, columns) + time_lines(best) +
                     memory_lines(best, cluster) + ablation_lines(result) +
                     next_best(result, columns);
  if (!result.nearest_infeasible.empty()) text += "misses  " + result.nearest_infeasible;
  const Search& s = result.search;
  return text + faster_lines(result) + limit_line(s) +
         fmt::format(
             "search  {} strategies ({} fit), {} evaluations, {} dynamic programs, {} plans "
             "simulated, {} refused by placement, {}; {}\n",
             format_count(double(s.policies)), format_count(double(s.feasible)),
             format_count(double(s.evaluations)), s.dynamic_programs, s.simulated, s.refused,
             format_seconds(s.seconds), bounds_text(s, best.seconds()));
}

}  // namespace brume::tuner
