/// @file Why this plan: plans without a knob, with more memory, on fewer nodes.
#include "why.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <set>

#include "base/numbers.hpp"
#include "base/text.hpp"
#include "base/units.hpp"
#include "fastest_placed.hpp"
#include "grid.hpp"
#include "least_work.hpp"
#include "plan/knobs.hpp"
#include "rows.hpp"
#include "worker_pool.hpp"

namespace brume::tuner {
namespace {

// What it costs to do without a knob is known to a quarter, or to 2 % of an iteration.
constexpr double ablation_gap = 0.02, ablation_part = 0.25;
// Where it is said to be more than this, all other orders are looked at, in this part of the time.
constexpr double worth_all_orders = 0.03, all_orders_part = 0.2;

/// A search without something that the best plan uses.
struct Without {
  std::string name;
  SearchInput input;
  std::function<bool(const plan::Plan&)> used;
  std::optional<Placed> fastest = std::nullopt;
  bool narrower = true;   ///< its plans are among those of the whole search
  bool searched = false;  ///< ... which went through all of them
  bool tried = false;
};

/// Only knobs and groups that the best plan uses: without another one it stays what it is.
std::vector<Without> searches(const SearchInput& input, const plan::Plan& best) {
  std::vector<Without> found;
  SearchInput rough = input;
  rough.roughly = true;
  for (const plan::Knob* knob : plan::in_turn()) {
    const std::string name = knob->without;
    if (name.empty() || std::ranges::find(found, name, &Without::name) != found.end()) continue;
    const auto used = [name](const plan::Plan& plan) {
      return std::ranges::any_of(plan::knobs, [&](const plan::Knob& other) {
        return other.without == name && plan::used(other, plan);
      });
    };
    // Not a choice there: another trainer stores what it does not recompute.
    const bool given =
        input.keys.store_rest && knob->search == plan::SearchMember(&deck::SearchKeys::store);
    if (given || !used(best)) continue;
    Without& without = found.emplace_back(Without{name, rough, used});
    without.searched = knob->order;
    for (const plan::Knob& other : plan::knobs)
      if (other.without == name)
        without.narrower = plan::forbid(other, without.input.keys) && without.narrower;
  }
  for (std::size_t i = 0; i < input.cluster.groups.size(); ++i) {
    const std::string& name = input.cluster.groups[i].name;
    const auto used = [name](const plan::Plan& plan) {
      return std::ranges::find(plan.stages, name, &plan::Stage::group) != plan.stages.end();
    };
    if (input.cluster.groups.size() == 1 || !used(best)) continue;
    found.push_back({name, rough, used});
    found.back().input.cluster.groups[i].nodes = 0;
  }
  return found;
}

}  // namespace

Reasons reasons(const SearchInput& input, WorkerPool& workers, Budget& budget,
                const RankedPlan& best, const Bounds& bounds, std::vector<Placed> known) {
  const Doubt doubt{ablation_gap, ablation_part, best.seconds()};
  std::vector<Without> all = searches(input, best.plan);
  for (Without& without : all) try {
      Placed fastest;
      for (const Placed& one : known)
        if (one.iteration_s < fastest.iteration_s && !without.used(one.plan)) fastest = one;
      if (without.searched && fastest.iteration_s < infinity)
        without.fastest = std::move(fastest);
      else
        without.fastest =
            fastest_placed(without.input, workers, doubt, bounds, std::move(fastest), &best.plan);
      without.tried = true;
      if (without.fastest && without.narrower) known.push_back(*without.fastest);
    } catch (const OutOfTime&) {
    }
  budget.allow(std::min(budget.left_s(), all_orders_part * budget.limit_s()));
  for (Without& without : all) try {
      if (!without.searched && without.fastest &&
          without.fastest->iteration_s > (1.0 + worth_all_orders) * best.seconds())
        look_at_other_orders(without.input, workers, doubt, nullptr, *without.fastest);
    } catch (const OutOfTime&) {
    }
  budget.allow(budget.left_s());
  Reasons found;
  double fastest_s = best.seconds();
  for (const Without& without : all) {
    if (!without.tried) {
      found.untried.push_back(without.name);
      continue;
    }
    Ablation& ablation = found.ablations.emplace_back(without.name, std::nullopt);
    if (!without.fastest) continue;
    ablation.iteration_s = without.fastest->iteration_s;
    if (!without.narrower || *ablation.iteration_s >= fastest_s) continue;
    fastest_s = *ablation.iteration_s;
    found.faster = without.fastest->plan;
  }
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
  for (const plan::Share& share : plan::shares) least(keys.*share.list());
  return keys;
}

}  // namespace

std::string nearest_infeasible(const SearchInput& input, WorkerPool& workers, double best_s) {
  constexpr double least_gain = 0.03;
  constexpr double most_bytes = 192.0 * bytes_per_gib;  // of the largest devices that are common
  SearchInput unlimited = input;
  for (hardware::NodeGroup& group : unlimited.cluster.groups)
    group.memory_bytes = group.host_memory_bytes = std::numeric_limits<std::int64_t>::max();
  AllRows rows(unlimited.cluster);
  unlimited.rows = &rows;
  unlimited.keys = saving_nothing(input.keys);
  const std::optional<Found> found =
      Searcher(unlimited, workers, configs(unlimited)).next(infinity);
  if (!found || found->candidate.predicted_s > (1.0 - least_gain) * best_s) return {};
  const plan::Plan& plan = found->candidate.plan;
  const auto prediction = workers.grid().analyzer().analyze(plan);
  std::int64_t missing = 0;
  std::size_t fullest = 0;
  for (std::size_t i = 0; i < prediction.stages.size(); ++i) {
    const int group = input.cluster.index(plan.stages[i].group);
    const std::int64_t over =
        prediction.stages[i].peak_bytes() - input.cluster.groups[group].memory_bytes;
    if (over <= missing) continue;
    missing = over;
    fullest = i;
    if (double(prediction.stages[i].peak_bytes()) > most_bytes) return {};
  }
  if (missing == 0) return {};
  const std::string& group = plan.stages[fullest].group;
  return fmt::format(
      "{} per step if each device{}{} had {} ({} bytes) more; stage {} is the fullest\n{}",
      format_seconds(found->candidate.predicted_s), group.empty() ? "" : " of ", group,
      format_bytes(double(missing)), missing, fullest, plan::table(plan));
}

namespace {

/// Another input's plan of 1F1B, where it is faster than a time. @throws OutOfTime
std::optional<double> faster_than(const SearchInput& input, WorkerPool& workers, double known_s) {
  const double least_s =
      least_work_s(configs(input), input.model, input.global_batch, input.cluster, input.machine);
  if (least_s >= known_s) return std::nullopt;
  SearchInput rough = input;
  rough.roughly = true;
  const auto found =
      fastest_placed(rough, workers, {.gap = 0.0}, {}, {.plan = {}, .iteration_s = known_s});
  return found && found->iteration_s < known_s ? std::optional(found->iteration_s) : std::nullopt;
}

/// Larger batches that a divisor of the number of devices divides, but not the batch: the next one
/// for each divisor.
std::set<int> batches_that_divide(int global_batch, int devices) {
  std::set<int> found;
  for (const int divisor : divisors(devices))
    if (global_batch % divisor != 0) found.insert(ceil_div(global_batch, divisor) * divisor);
  return found;
}

}  // namespace

std::vector<Faster> faster_beside(const SearchInput& input, WorkerPool& workers, double best_s) {
  constexpr double least_gain = 0.03;
  best_s *= 1.0 - least_gain;
  std::vector<Faster> found;
  SearchInput fewer = input;
  hardware::NodeGroup& group = fewer.cluster.groups[0];
  double fewest_s = best_s;
  while (input.cluster.num_groups() == 1 && (group.nodes /= 2) > 0)
    if (const auto seconds = faster_than(fewer, workers, fewest_s)) {
      found = {{"cluster.nodes", group.nodes, *seconds}};
      fewest_s = *seconds;
    }
  SearchInput larger = input;
  for (const int batch : batches_that_divide(input.global_batch, input.cluster.devices())) {
    larger.global_batch = batch;
    if (const auto seconds = faster_than(larger, workers, best_s)) {
      found.push_back({"training.global_batch", batch, *seconds});
      break;
    }
  }
  return found;
}

}  // namespace brume::tuner
