#include "placement.hpp"

#include <algorithm>

#include "schedule/compile.hpp"

namespace brume::tuner {
namespace {

std::int64_t arena(const schedule::Program& program, schedule::Tier tier) {
  return program.arena_bytes[std::size_t(tier)];
}

}  // namespace

Placement sample(const plan::Plan& plan, const model::Config& model,
                 const hardware::Cluster& cluster) {
  Placement placement;
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    const auto program = schedule::compile(plan, model, plan::rank_of(plan, stage, 0, 0));
    placement.device_bytes =
        std::max(placement.device_bytes, arena(program, schedule::Tier::device));
    if (arena(program, schedule::Tier::device) > cluster.memory_bytes) placement.misfit = stage;
  }
  return placement;
}

Placement place(const plan::Plan& plan, const model::Config& model,
                const hardware::Cluster& cluster) {
  using schedule::Tier;
  Placement placement = sample(plan, model, cluster);
  if (placement.misfit) return placement;

  for (int first = 0; first < plan.devices(); first += cluster.devices_per_node) {
    std::int64_t on_node = 0, most = -1;
    int fullest = 0;  // the stage of this node that takes most of its memory
    for (int rank = first; rank < std::min(first + cluster.devices_per_node, plan.devices());
         ++rank) {
      const auto& program = placement.programs.emplace_back(schedule::compile(plan, model, rank));
      const int stage = plan::place(plan, rank).stage;
      placement.device_bytes = std::max(placement.device_bytes, arena(program, Tier::device));
      if (arena(program, Tier::device) > cluster.memory_bytes) placement.misfit = stage;
      on_node += arena(program, Tier::host);
      if (arena(program, Tier::host) <= most) continue;
      most = arena(program, Tier::host);
      fullest = stage;
    }
    placement.host_bytes = std::max(placement.host_bytes, on_node);
    if (on_node > cluster.host_memory_bytes) placement.misfit = fullest;
  }
  return placement;
}

}  // namespace brume::tuner
