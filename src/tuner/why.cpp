/// @file Why this plan, and what would fit where none does.
#include "why.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <future>
#include <limits>
#include <thread>

#include "base/text.hpp"
#include "base/units.hpp"
#include "placement.hpp"

namespace brume::tuner {
namespace {

constexpr double ablation_gap = 0.02;  ///< of the time without a knob

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
      {"weight offload", [](SearchKeys& k) { k.weight_offload = {0.0}; },
       [](const Plan&, const Stage& s) { return s.weight_offload_ratio > 0.0; }},
      {"gradient offload", [](SearchKeys& k) { k.grad_offload = {0.0}; },
       [](const Plan&, const Stage& s) { return s.grad_offload_ratio > 0.0; }},
      {"optimizer offload", [](SearchKeys& k) { k.optim_offload = {0.0}; },
       [](const Plan&, const Stage& s) { return s.optim_offload_ratio > 0.0; }},
      {"activation offload", [](SearchKeys& k) { k.act_offload = {0.0}; },
       [](const Plan&, const Stage& s) { return s.act_offload_ratio > 0.0; }},
      {"disk", [](SearchKeys& k) { k.optim_disk = k.act_disk = {0.0}; },
       [](const Plan&, const Stage& s) { return plan::uses_disk(s); }},
      {"unequal stages", [](SearchKeys& k) { k.unequal_stages = false; },
       [](const Plan& p, const Stage& s) {
         const Stage& first = p.stages[0];
         // Those of several groups may always differ.
         return s.group.empty() &&
                (s.dp != first.dp || s.tp != first.tp || s.microbatch != first.microbatch);
       }},
      {"pipeline parallelism", [](SearchKeys& k) { k.stages = {1}; },
       [](const Plan& p, const Stage&) { return p.num_stages() > 1; }},
      {"tensor parallelism", [](SearchKeys& k) { k.tp = {1}; },
       [](const Plan&, const Stage& s) { return s.tp > 1; }},
      {"data parallelism", [](SearchKeys& k) { k.dp = {1}; },
       [](const Plan&, const Stage& s) { return s.dp > 1; }},
  };
  return all;
}

/// The coarsely simulated time of a plan that fits, than which none is faster by more than `gap`
/// by the model's bound or prediction [s]. @throws OutOfTime when none is known by then
std::optional<double> fastest_placed(const Question& question, Grid& grid, double gap) {
  Searcher searcher(question, grid);
  double fastest_s = infinity;
  while (const std::optional<Found> found = searcher.next(fastest_s * (1.0 - gap))) {
    if (found->offer.predicted_s >= fastest_s) break;
    const Coarse coarse = coarsely(found->offer.plan, question.model, question.cluster,
                                   question.machine, question.deadline);
    if (coarse.misfit)
      searcher.strike(*found, *coarse.misfit);
    else
      fastest_s = std::min(fastest_s, coarse.iteration_s.value_or(found->offer.predicted_s));
  }
  if (fastest_s < infinity) return fastest_s;
  if (!searcher.done(infinity)) throw OutOfTime();
  return std::nullopt;
}

}  // namespace

namespace {

/// A search without something that the best plan uses.
struct Without {
  std::string name;
  Question question;
  std::optional<double> iteration_s = std::nullopt;
  bool tried = false;
};

/// Only knobs and groups that the best plan uses: without another one it stays what it is.
std::vector<Without> searches(const Question& question, const plan::Plan& best) {
  std::vector<Without> found;
  for (const Knob& knob : knobs())
    if (std::ranges::any_of(best.stages,
                            [&](const plan::Stage& stage) { return knob.used(best, stage); })) {
      found.push_back({knob.name, question});
      knob.forbid(found.back().question.keys);
    }
  for (std::size_t i = 0; i < question.cluster.groups.size(); ++i) {
    const std::string& name = question.cluster.groups[i].name;
    const auto used = [&](const plan::Stage& stage) { return stage.group == name; };
    if (question.cluster.groups.size() == 1 || std::ranges::none_of(best.stages, used)) continue;
    found.push_back({name, question});
    found.back().question.cluster.groups[i].nodes = 0;
  }
  return found;
}

}  // namespace

// Each core takes the next search, with expressions of its own, until none is left.
std::vector<Ablation> ablations(const Question& question, const Candidate& best,
                                std::vector<std::string>& untried) {
  std::vector<Without> all = searches(question, best.plan);
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    Grid grid(question.model, question.machine, question.deadline);
    for (std::size_t i = next++; i < all.size(); i = next++) try {
        all[i].iteration_s = fastest_placed(all[i].question, grid, ablation_gap);
        all[i].tried = true;
      } catch (const OutOfTime&) {
      }
  };
  std::vector<std::future<void>> others;
  const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
  for (std::size_t i = 1; i < std::min(cores, all.size()); ++i)
    others.push_back(std::async(std::launch::async, work));
  work();
  for (std::future<void>& other : others) other.get();
  std::vector<Ablation> found;
  for (const Without& without : all)
    if (without.tried)
      found.push_back({without.name, without.iteration_s});
    else
      untried.push_back(without.name);
  return found;
}

namespace {

/// The search without savings. Saving memory costs time, so it holds the fastest plan of a machine
/// without limits.
deck::SearchKeys saving_nothing(deck::SearchKeys keys) {
  const auto least = [](std::vector<double>& ratios) {
    if (!ratios.empty()) ratios = {*std::ranges::min_element(ratios)};
  };
  keys.recompute = false;
  for (auto* ratios : {&keys.weight_offload, &keys.grad_offload, &keys.optim_offload,
                       &keys.act_offload, &keys.optim_disk, &keys.act_disk})
    least(*ratios);
  return keys;
}

}  // namespace

std::string nearest_infeasible(const Question& question, Grid& grid) {
  Question unlimited = question;
  for (hardware::NodeGroup& group : unlimited.cluster.groups)
    group.memory_bytes = group.host_memory_bytes = std::numeric_limits<std::int64_t>::max();
  unlimited.keys = saving_nothing(question.keys);
  const std::optional<Found> found = Searcher(unlimited, grid).next(infinity);
  if (!found) return {};
  const plan::Plan& plan = found->offer.plan;
  const auto prediction = grid.analyzer().analyze(plan);
  std::int64_t missing = 0;
  std::size_t fullest = 0;
  for (std::size_t i = 0; i < prediction.stages.size(); ++i) {
    const int group = question.cluster.index(plan.stages[i].group);
    const std::int64_t over = prediction.stages[i].peak_bytes() -
                              question.cluster.groups[std::size_t(group)].memory_bytes;
    if (over <= missing) continue;
    missing = over;
    fullest = i;
  }
  if (missing == 0) return {};
  const std::string& group = plan.stages[fullest].group;
  return fmt::format(
      "{} an iteration if each device{}{} had {} ({} bytes) more; stage {} is the fullest\n{}",
      format_seconds(found->offer.predicted_s), group.empty() ? "" : " of ", group,
      format_bytes(double(missing)), missing, fullest, plan::table(plan));
}

namespace {

/// A change of the deck's lists under which something fits. @throws OutOfTime
std::string other_change(const Question& question, Grid& grid) {
  const auto all = [](std::vector<double>& ratios) { ratios = {0.0, 0.5, 1.0}; };
  const std::vector<std::pair<const char*, std::function<void(deck::SearchKeys&)>>> changes{
      {"recompute = true", [](auto& k) { k.recompute = true; }},
      {"zero_levels = [0, 1, 2, 3]",
       [](auto& k) {
         k.zero_levels = {0, 1, 2, 3};
       }},
      {"optim_offload = [0, 0.5, 1]", [&](auto& k) { all(k.optim_offload); }},
      {"act_offload = [0, 0.5, 1]", [&](auto& k) { all(k.act_offload); }},
      {"weight_offload = [0, 0.5, 1]", [&](auto& k) { all(k.weight_offload); }},
      {"grad_offload = [0, 0.5, 1]", [&](auto& k) { all(k.grad_offload); }},
      {"optim_disk = [0, 0.5, 1]", [&](auto& k) { all(k.optim_disk); }},
      {"act_disk = [0, 0.5, 1]", [&](auto& k) { all(k.act_disk); }},
      {"microbatch = []", [](auto& k) { k.microbatch.clear(); }},
      {"tp = []", [](auto& k) { k.tp.clear(); }},
      {"dp = []", [](auto& k) { k.dp.clear(); }},
      {"stages = []", [](auto& k) { k.stages.clear(); }},
      {"unequal_stages = true", [](auto& k) { k.unequal_stages = true; }}};
  for (const auto& [name, change] : changes) {
    Question other = question;
    change(other.keys);
    if (const auto time_s = fastest_placed(other, grid, 1.0))  // any plan will do
      return fmt::format("search.{} would fit: {} an iteration", name, format_seconds(*time_s));
  }
  return {};
}

/// Of the plan that needs least: what the group needs that misses by most of its memory.
std::string missing_memory(const plan::Plan& smallest, const Placement& placed,
                           const hardware::Cluster& cluster, const std::string& advice) {
  const auto share = [&](std::size_t i) {
    return double(placed.groups[i].device_bytes) / double(cluster.groups[i].memory_bytes);
  };
  std::size_t fullest = 0;
  for (std::size_t i = 1; i < cluster.groups.size(); ++i)
    if (share(i) > share(fullest)) fullest = i;
  const hardware::NodeGroup& group = cluster.groups[fullest];
  const Held& held = placed.groups[fullest];
  const std::string key =
      group.name.empty() ? "cluster.memory_gib" : "memory_gib of group '" + group.name + "'";
  return fmt::format(
      "no plan fits: the one that needs least takes {} ({} bytes) per device, {} bytes more "
      "than {} = {:g} allows; memory_gib = {:.4f} would fit (host: {} a node of {}){}\n{}",
      format_bytes(double(held.device_bytes)), held.device_bytes,
      held.device_bytes - group.memory_bytes, key, double(group.memory_bytes) / bytes_per_gib,
      std::ceil(double(held.device_bytes) / bytes_per_gib * 1e4) / 1e4,
      format_bytes(double(held.host_bytes)), format_bytes(double(group.host_memory_bytes)), advice,
      plan::table(smallest));
}

}  // namespace

void nothing_fits(const Question& question, Grid& grid) {
  std::optional<plan::Plan> smallest;
  std::optional<Placement> placed;
  std::string advice;
  try {
    smallest = smallest_plan(question, grid);
    if (smallest) placed = place(*smallest, question.model, question.cluster, Deadline(placing_s));
    const std::string other = other_change(question, grid);
    if (!other.empty()) advice = "; " + other;
  } catch (const OutOfTime&) {
    advice = fmt::format(
        "; search.time_limit_s = {:g} ended the search for what would fit: raise it to know more",
        question.keys.time_limit_s);
  }
  if (placed)
    throw Infeasible("memory", missing_memory(*smallest, *placed, question.cluster, advice));
  if (question.deadline.left_s() == 0.0) throw Infeasible("memory", "no plan fits" + advice);
  throw Infeasible(
      "split",
      fmt::format("no plan: stages, dp, tp and microbatch of [search] leave no way to split {} "
                  "layers, a global batch of {} and {} devices{}",
                  question.model.num_layers, question.global_batch, question.cluster.text(),
                  advice));
}

void nothing_found(const Question& question, const Searcher& searcher, int struck) {
  Search seen;
  searcher.add_to(seen);
  throw Infeasible(
      "time limit",
      fmt::format("no plan is known to fit: search.time_limit_s = {:g} ended the search after {} "
                  "strategies of stages, of which {} fit, and {} plans that placement refused; "
                  "raise it, or shorten the lists of [search]",
                  question.keys.time_limit_s, format_count(double(seen.policies)),
                  format_count(double(seen.feasible)), struck));
}

}  // namespace brume::tuner
