#include "placement.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>

#include "base/error.hpp"
#include "base/parallel.hpp"
#include "schedule/compile.hpp"
#include "schedule/steady.hpp"

namespace brume::tuner {
namespace {

using schedule::Arenas;
using schedule::Tier;

/// Adds up what each node's ranks take, and looks for what does not fit.
void count(Placement& placement, const plan::Plan& plan, const hardware::Cluster& cluster,
           const std::function<Arenas(int rank)>& arenas) {
  placement.stage_bytes.assign(std::size_t(plan.pipeline_size()), 0);
  placement.groups.assign(cluster.groups.size(), {});
  for (const auto& [node, ranks] : plan::ranks_of_nodes(plan, cluster)) {
    const hardware::NodeGroup& group = cluster.groups[node.group];
    GroupMemory& held = placement.groups[node.group];
    Arenas on_node{}, most{};
    std::array<int, schedule::num_tiers> fullest{};  // the stage that takes most of the node's
    for (int rank : ranks) {
      const Arenas bytes = arenas(rank);
      const std::int64_t device = bytes[std::size_t(Tier::device)];
      const int stage = plan::stage_index(plan, rank);
      held.device_bytes = std::max(held.device_bytes, device);
      std::int64_t& of_stage = placement.stage_bytes[stage];
      of_stage = std::max(of_stage, device);
      if (device > group.memory_bytes) placement.misfit = stage;
      for (std::size_t tier = 0; tier < bytes.size(); ++tier) {
        on_node[tier] += bytes[tier];
        if (bytes[tier] <= most[tier]) continue;
        most[tier] = bytes[tier];
        fullest[tier] = stage;
      }
    }
    const auto shared = [&](Tier tier, std::int64_t limit, std::int64_t& largest) {
      const auto t = std::size_t(tier);
      largest = std::max(largest, on_node[t]);
      if (on_node[t] > limit) placement.misfit = fullest[t];
    };
    shared(Tier::host, group.host_memory_bytes, held.host_bytes);
    shared(Tier::disk, group.disk_bytes, held.disk_bytes);
  }
}

/// The same plan with as many microbatches as it takes to reach its steady state: later ones reuse
/// the bytes of earlier ones.
plan::Plan shortened(const plan::Plan& plan) {
  return schedule::of_microbatches(
      plan, std::min(plan.microbatches, schedule::steady_microbatches(plan)));
}

/// Whether the plan is one that executes.
bool executes(const plan::Plan& plan, const model::Config& model,
              const hardware::Cluster& cluster) {
  try {
    plan::check(plan, model, cluster);
  } catch (const Error&) {
    return false;
  }
  return true;
}

/// A sample, with the Programs of some ranks where it fits.
Placement place_some(const plan::Plan& plan, const model::Config& model,
                     const hardware::Cluster& cluster, const std::vector<int>& ranks, int threads,
                     const Deadline& deadline) {
  Placement placement = sample(plan, model, cluster, threads, deadline);
  if (placement.misfit) return placement;
  placement.programs.resize(ranks.size());
  parallel_for(ranks.size(), threads, [&](std::size_t i, std::size_t) {
    placement.programs[i] = schedule::compile(plan, model, ranks[i], {.deadline = deadline});
  });
  return placement;
}

}  // namespace

Placement sample(const plan::Plan& whole, const model::Config& model,
                 const hardware::Cluster& cluster, int threads, const Deadline& deadline,
                 schedule::Packings* packings, bool until_it_fits) {
  const plan::Plan plan = shortened(whole);
  schedule::Packings own;
  if (!packings) packings = &own;
  const auto arenas = [&](int rank) {
    const plan::Stage& stage = plan.stages[plan::stage_index(plan, rank)];
    const auto& group = cluster.groups[cluster.index(stage.group)];
    Arenas enough{};
    if (until_it_fits)
      enough = {group.memory_bytes, group.host_memory_bytes / stage.devices_per_node,
                std::numeric_limits<std::int64_t>::max()};
    return schedule::arena_bytes(plan, model, rank,
                                 {.enough = enough, .deadline = deadline, .packings = packings});
  };
  // The last ranks after all first ones: most are like these, and find their packing.
  std::vector<int> ranks;
  for (const bool last : {false, true})
    for (int stage = 0; stage < plan.pipeline_size(); ++stage) {
      const plan::Stage& s = plan.stages[stage];
      if (!last) ranks.push_back(plan::first_rank(plan, stage));
      if (last && s.devices() > 1) ranks.push_back(plan::first_rank(plan, stage) + s.devices() - 1);
    }
  std::vector<Arenas> of_ranks(ranks.size());
  parallel_for(ranks.size(), threads,
               [&](std::size_t i, std::size_t) { of_ranks[i] = arenas(ranks[i]); });
  std::vector<Arenas> largest(std::size_t(plan.pipeline_size()), Arenas{});
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    Arenas& most = largest[plan::stage_index(plan, ranks[i])];
    for (std::size_t tier = 0; tier < most.size(); ++tier)
      most[tier] = std::max(most[tier], of_ranks[i][tier]);
  }
  // Tokens in and out of all microbatches lie on the device; int32.
  const std::int64_t left_out = std::int64_t{whole.microbatches} - plan.microbatches;
  for (std::size_t end : {std::size_t{0}, largest.size() - 1})
    largest[end][std::size_t(Tier::device)] += left_out * plan.stages[end].microbatch *
                                               model.padded_len() *
                                               std::int64_t{sizeof(std::int32_t)};
  Placement placement;
  count(placement, plan, cluster, [&](int rank) { return largest[plan::stage_index(plan, rank)]; });
  return placement;
}

Coarse coarsely(const SearchInput& input, const plan::Plan& plan, int threads) {
  // Tight placement takes long, and matters only where memory is short.
  Coarse found{
      sample(plan, input.model, input.cluster, threads, input.deadline, input.packings, true)
          .misfit,
      std::nullopt};
  if (found.misfit || !executes(plan, input.model, input.cluster)) return found;
  found.iteration_s = schedule::steady_time(plan, input.model, input.machine, input.deadline,
                                            threads, input.packings);
  return found;
}

Placement place(const plan::Plan& plan, const model::Config& model,
                const hardware::Cluster& cluster, int threads, const Deadline& deadline) {
  std::vector<int> ranks;
  if (executes(plan, model, cluster)) ranks = schedule::simulated_ranks(plan);
  if (int(ranks.size()) < plan.devices())
    return place_some(plan, model, cluster, ranks, threads, deadline);
  Placement placement;
  placement.programs =
      schedule::compile_all(plan, model, {.deadline = deadline, .threads = threads});
  count(placement, plan, cluster, [&](int rank) { return placement.programs[rank].arena_bytes; });
  return placement;
}

}  // namespace brume::tuner
