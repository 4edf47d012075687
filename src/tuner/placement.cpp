#include "placement.hpp"

#include <algorithm>
#include <array>
#include <functional>

#include "schedule/compile.hpp"

namespace brume::tuner {
namespace {

using schedule::Tier;

/// Arena bytes of a rank, by tier.
using Arenas = std::array<std::int64_t, schedule::num_tiers>;

/// Adds up what each node's ranks take, and looks for what does not fit.
void count(Placement& placement, const plan::Plan& plan, const hardware::Cluster& cluster,
           const std::function<Arenas(int rank)>& arenas) {
  for (int first = 0; first < plan.devices(); first += cluster.devices_per_node) {
    std::int64_t on_node = 0, most = -1;
    int fullest = 0;  // the stage of this node that takes most of its memory
    for (int rank = first; rank < std::min(first + cluster.devices_per_node, plan.devices());
         ++rank) {
      const Arenas bytes = arenas(rank);
      const std::int64_t device = bytes[std::size_t(Tier::device)];
      const std::int64_t host = bytes[std::size_t(Tier::host)];
      const int stage = plan::place(plan, rank).stage;
      placement.device_bytes = std::max(placement.device_bytes, device);
      if (device > cluster.memory_bytes) placement.misfit = stage;
      on_node += host;
      if (host <= most) continue;
      most = host;
      fullest = stage;
    }
    placement.host_bytes = std::max(placement.host_bytes, on_node);
    if (on_node > cluster.host_memory_bytes) placement.misfit = fullest;
  }
}

}  // namespace

Placement sample(const plan::Plan& plan, const model::Config& model,
                 const hardware::Cluster& cluster) {
  std::vector<Arenas> largest(plan.stages.size(), Arenas{});
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    const plan::Stage& s = plan.stages[std::size_t(stage)];
    const int first = plan::rank_of(plan, stage, 0, 0);
    const int last = plan::rank_of(plan, stage, s.dp - 1, s.tp - 1);
    for (int rank : first == last ? std::vector{first} : std::vector{first, last}) {
      const Arenas bytes = schedule::compile(plan, model, rank).arena_bytes;
      for (std::size_t tier = 0; tier < bytes.size(); ++tier)
        largest[std::size_t(stage)][tier] =
            std::max(largest[std::size_t(stage)][tier], bytes[tier]);
    }
  }
  Placement placement;
  count(placement, plan, cluster,
        [&](int rank) { return largest[std::size_t(plan::place(plan, rank).stage)]; });
  return placement;
}

Placement place(const plan::Plan& plan, const model::Config& model,
                const hardware::Cluster& cluster) {
  // One rank a stage tells most misfits.
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    const auto program = schedule::compile(plan, model, plan::rank_of(plan, stage, 0, 0));
    const std::int64_t device = program.arena_bytes[std::size_t(Tier::device)];
    if (device > cluster.memory_bytes)
      return {.programs = {}, .device_bytes = device, .host_bytes = 0, .misfit = stage};
  }
  Placement placement;
  count(placement, plan, cluster, [&](int rank) {
    return placement.programs.emplace_back(schedule::compile(plan, model, rank)).arena_bytes;
  });
  return placement;
}

}  // namespace brume::tuner
