/// @file The plan that needs least memory, and what would fit where none does.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.hpp"
#include "base/units.hpp"
#include "fastest_placed.hpp"
#include "minimal_memory.hpp"
#include "placement.hpp"
#include "plan/knobs.hpp"
#include "why.hpp"
#include "worker_pool.hpp"

namespace brume::tuner {
namespace {

/// A key of the search that would let a plan fit, and its value. @throws OutOfTime
std::string other_change(const SearchInput& input, WorkerPool& workers) {
  const bool disk = std::ranges::any_of(
      input.cluster.groups, [](const hardware::NodeGroup& g) { return g.disk_bytes > 0; });
  for (const plan::Knob* knob : plan::in_turn()) {
    if (knob->on_disk && !disk) continue;
    SearchInput other = input;
    other.roughly = true;
    const std::string change = plan::allow(*knob, other.keys);
    if (change.empty()) continue;
    if (const auto any = fastest_placed(other, workers, {.gap = 1.0}))  // any plan will do
      return fmt::format("search.{} would fit: {} per step", change,
                         format_seconds(any->iteration_s));
  }
  return {};
}

/// Refusal that states the memory of the plan that needs least, on the group that lacks most.
std::string missing_memory(const plan::Plan& smallest, const Placement& placed,
                           const hardware::Cluster& cluster, const std::string& advice) {
  const auto share = [&](std::size_t i) {
    return double(placed.groups[i].device_bytes) / double(cluster.groups[i].memory_bytes);
  };
  std::size_t fullest = 0;
  for (std::size_t i = 1; i < cluster.groups.size(); ++i)
    if (share(i) > share(fullest)) fullest = i;
  const hardware::NodeGroup& group = cluster.groups[fullest];
  const GroupMemory& held = placed.groups[fullest];
  const std::int64_t needed = held.device_bytes + group.reserved_bytes;
  const std::string key =
      group.name.empty() ? "cluster.memory_gib" : "memory_gib of group '" + group.name + "'";
  return fmt::format(
      "no plan fits: the one that needs least takes {} ({} bytes) per device{}, {} bytes more "
      "than {} = {:g} allows; memory_gib = {:.4f} would fit (host: {} a node of {}){}\n{}",
      format_bytes(double(needed)), needed,
      group.reserved_bytes > 0 ? fmt::format(", {} of them for libraries and the driver",
                                             format_bytes(double(group.reserved_bytes)))
                               : "",
      needed - group.given_bytes(), key, double(group.given_bytes()) / bytes_per_gib,
      std::ceil(double(needed) / bytes_per_gib * 1e4) / 1e4, format_bytes(double(held.host_bytes)),
      format_bytes(double(group.host_memory_bytes)), advice, plan::table(smallest));
}

}  // namespace

std::string ended_by(bool interrupted, double limit_s) {
  return interrupted ? "a signal" : fmt::format("search.time_limit_s = {:g}", limit_s);
}

std::pair<plan::Plan, Placement> smallest_that_fits(const SearchInput& input, WorkerPool& workers) {
  std::optional<plan::Plan> smallest;
  std::optional<Placement> placed;
  std::string advice;
  try {
    smallest = minimal_memory_plan(input, workers.grid());
    if (smallest) {
      const Deadline deadline(std::max(placing_s, input.deadline.left_s()));
      placed = place(*smallest, input.model, input.cluster, workers.threads(), deadline);
      if (!placed->misfit) return {*std::move(smallest), *std::move(placed)};
    }
    const std::string other = other_change(input, workers);
    if (!other.empty()) advice = "; " + other;
  } catch (const OutOfTime&) {
    advice = fmt::format("; {} ended the search for what would fit",
                         ended_by(input.deadline.stopped(), input.keys.time_limit_s));
  }
  if (placed) throw Infeasible("memory", missing_memory(*smallest, *placed, input.cluster, advice));
  if (smallest || input.deadline.left_s() == 0.0)
    throw Infeasible("memory", "no plan fits" + advice);
  throw Infeasible(
      "split",
      fmt::format("no plan: stages, dp, cp, tp, ep, dispatch_tokens, "
                  "mlp_tiles and microbatch of [search] leave no way to split {} "
                  "layers, a global batch of {} and {} devices{}",
                  input.model.num_layers, input.global_batch, input.cluster.text(), advice));
}

void nothing_found(const SearchInput& input, const Searcher& searcher, int refused) {
  Search seen;
  searcher.add_to(seen);
  const bool interrupted = input.deadline.stopped();
  throw Infeasible(
      interrupted ? "interrupted" : "time limit",
      fmt::format("no plan is known to fit: {} ended the search after {} strategies of stages, of "
                  "which {} fit, and {} plans that placement refused{}",
                  ended_by(interrupted, input.keys.time_limit_s),
                  format_count(double(seen.policies)), format_count(double(seen.feasible)), refused,
                  interrupted ? "" : "; raise it, or shorten the lists of [search]"));
}

}  // namespace brume::tuner
