/// @file Seconds of what a rank moves: within its memory, to and from host and disk, to other
/// ranks.
#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/text.hpp"
#include "plan/rules.hpp"
#include "price/price.hpp"

namespace brume::price {

using hardware::CopyKind, hardware::LinkKind;

namespace {

double passes_s(const hardware::Profile& profile, double passes, double bytes) {
  return profile.bytes_per_s > 0.0 ? passes * bytes / profile.bytes_per_s : 0.0;
}

LinkKind kind_of(Collective collective) {
  switch (collective) {
    case Collective::all_reduce: return LinkKind::all_reduce;
    case Collective::reduce_scatter: return LinkKind::reduce_scatter;
    case Collective::all_gather:
    case Collective::all_to_all: return LinkKind::all_gather;
  }
  return LinkKind::send;
}

}  // namespace

double task_s(const hardware::Profile& profile, double work_s, int tasks) {
  return tasks * profile.task_overhead_s + work_s;
}

double copy_s(const hardware::Profile& profile, double bytes) {
  return passes_s(profile, 2.0, bytes);
}
double accumulate_s(const hardware::Profile& profile, double bytes) {
  return passes_s(profile, 3.0, bytes);
}
double clear_s(const hardware::Profile& profile, double bytes) {
  return accumulate_s(profile, bytes);
}
double norm_s(const hardware::Profile& profile, double bytes) {
  return passes_s(profile, 1.0, bytes);
}

double copy_in_s(const hardware::Profile& profile, double bytes) {
  return hardware::copy_time(profile, CopyKind::copy_in, bytes);
}
double copy_out_s(const hardware::Profile& profile, double bytes) {
  return hardware::copy_time(profile, CopyKind::copy_out, bytes);
}
double disk_read_s(const hardware::Profile& profile, double bytes) {
  return hardware::copy_time(profile, CopyKind::disk_read, bytes);
}
double disk_write_s(const hardware::Profile& profile, double bytes) {
  return hardware::copy_time(profile, CopyKind::disk_write, bytes);
}

Ranks ranks(const plan::Stage& stage, model::AxisSet axes, int first) {
  const plan::Mesh<int> mesh = plan::mesh(stage, axes);
  const auto [nodes, per_node] = mesh.spread(axes, stage.devices_per_node);
  return {.nodes = nodes,
          .per_node = per_node,
          .extent = std::max(1, mesh.extent(axes) / stage.devices_per_node),
          .first = first,
          .stage_nodes = stage.nodes};
}

int first_in_unit(const plan::Plan& plan, const hardware::Machine& machine, int stage) {
  const plan::Stage& own = plan.stages[stage];
  const hardware::Profile& profile = machine.profile(own.group);
  if (profile.levels.empty()) return 0;  // simulations ask for each collective
  const int node = plan::first_device(plan, stage) / profile.key.ranks_per_node;
  return hardware::first_in_unit(profile, node, own.nodes);
}

Ranks world_ranks(const hardware::Profile& profile, int devices) {
  const int per_node = std::max(1, std::min(devices, profile.key.ranks_per_node));
  const int nodes = int(ceil_div(devices, per_node));
  return {.nodes = nodes, .per_node = per_node, .extent = nodes, .stage_nodes = nodes};
}

plan::Node node_of(const plan::Plan& plan, const hardware::Machine& machine, int rank) {
  const int stage = plan::stage_index(plan, rank);
  const int group = machine.index(plan.stages[stage].group);
  const int device = plan::first_device(plan, stage) + rank - plan::first_rank(plan, stage);
  return {group, plan::node_at(plan, device / machine.profile(group).key.ranks_per_node)};
}

double times_as_long(const hardware::Profile& profile, std::span<const int> nodes) {
  const hardware::SlowPair* slowest = hardware::slowest_pair(profile, nodes);
  return slowest ? slowest->times : 1.0;
}

double times_as_long(const plan::Plan& plan, const hardware::Machine& machine,
                     std::span<const int> ranks) {
  std::set<plan::Node> nodes;
  for (const int rank : ranks) nodes.insert(node_of(plan, machine, rank));
  std::map<int, std::vector<int>> of_groups;
  for (const plan::Node& node : nodes) of_groups[node.group].push_back(node.index);
  double slowest = 1.0;
  for (const auto& [group, of_group] : of_groups)
    slowest = std::max(slowest, times_as_long(machine.profile(group), of_group));
  return slowest;
}

double collective_s(const hardware::Profile& profile, Collective collective, Ranks ranks,
                    double bytes) {
  const hardware::Congestion congestion =
      hardware::congestion(profile, {ranks.nodes, ranks.extent, ranks.first, ranks.stage_nodes},
                           collective == Collective::all_to_all);
  const auto link_s = [&](int nodes, double all, const hardware::Congestion& slower) {
    return hardware::link_time(profile, kind_of(collective), nodes, ranks.per_node, all, slower);
  };
  if (collective != Collective::all_to_all || ranks.nodes == 1 || ranks.per_node == 1)
    return ranks.times * link_s(ranks.nodes, bytes, congestion);
  // Rings of an all-gather that carry as much within a node, and into one.
  const double nodes = ranks.nodes, per_node = ranks.per_node, all = nodes * per_node;
  const double into_node = per_node * bytes * (nodes - 1.0) / nodes * all / (all - 1.0);
  return ranks.times * (link_s(1, bytes / nodes, {}) + link_s(ranks.nodes, into_node, congestion));
}

double send_s(const hardware::Profile& profile, bool leaves_node, double bytes,
              const hardware::Congestion& congestion) {
  return hardware::link_time(profile, LinkKind::send, leaves_node ? 2 : 1, leaves_node ? 1 : 2,
                             bytes, congestion);
}

Ends ends(const plan::Plan& plan, const hardware::Machine& machine, int rank, int peer) {
  const plan::Node own = node_of(plan, machine, rank), other = node_of(plan, machine, peer);
  Ends ends{.group = own.group, .peer_group = other.group};
  ends.leaves_node = own.group == other.group && own.index != other.index;
  if (!ends.leaves_node) return ends;
  const hardware::Profile& profile = machine.profile(own.group);
  ends.times = times_as_long(
      profile, std::array{std::min(own.index, other.index), std::max(own.index, other.index)});
  ends.congestion = hardware::congestion(profile, own.index, other.index,
                                         plan.stages[plan::stage_index(plan, rank)].nodes);
  return ends;
}

double send_s(const hardware::Machine& machine, const Ends& ends, double bytes) {
  return ends.group == ends.peer_group
             ? ends.times *
                   send_s(machine.profile(ends.group), ends.leaves_node, bytes, ends.congestion)
             : machine.crossing_s(ends.group, ends.peer_group, bytes);
}

}  // namespace brume::price
