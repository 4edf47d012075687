/// @file Seconds of what a rank moves: within its memory, to and from host and disk, to other
/// ranks.
#include <algorithm>

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
    case Collective::all_gather: return LinkKind::all_gather;
  }
  return LinkKind::send;
}

/// Which node of its group a rank is on.
int node_of(const plan::Plan& plan, int rank, int node_ranks) {
  const int stage = plan::place(plan, rank).stage;
  return (plan::first_device(plan, stage) + rank - plan::rank_of(plan, stage, 0, 0)) / node_ranks;
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

namespace {

Ranks ranks(const plan::Spread<int>& spread) { return {spread.nodes, spread.per_node}; }

}  // namespace

Ranks tp_ranks(const plan::Stage& stage) { return ranks(plan::spreads(stage).tp); }
Ranks dp_ranks(const plan::Stage& stage) { return ranks(plan::spreads(stage).dp); }
Ranks shard_ranks(const plan::Stage& stage) { return ranks(plan::spreads(stage).shards); }
Ranks replica_ranks(const plan::Stage& stage) { return ranks(plan::spreads(stage).replicas); }

Ranks world_ranks(const hardware::Profile& profile, int devices) {
  const int per_node = std::max(1, std::min(devices, profile.key.ranks_per_node));
  return {int(ceil_div(devices, per_node)), per_node};
}

double collective_s(const hardware::Profile& profile, Collective collective, Ranks ranks,
                    double bytes) {
  return hardware::link_time(profile, kind_of(collective), ranks.nodes, ranks.per_node, bytes);
}

double send_s(const hardware::Profile& profile, bool leaves_node, double bytes) {
  return hardware::link_time(profile, LinkKind::send, leaves_node ? 2 : 1, leaves_node ? 1 : 2,
                             bytes);
}

Ends ends(const plan::Plan& plan, const hardware::Machine& machine, int rank, int peer) {
  const auto group = [&](int of) {
    return machine.index(plan.stages[std::size_t(plan::place(plan, of).stage)].group);
  };
  const int own = group(rank), other = group(peer);
  const int node_ranks = machine.profile(own).key.ranks_per_node;
  const bool leaves =
      own == other && node_of(plan, rank, node_ranks) != node_of(plan, peer, node_ranks);
  return {own, other, leaves};
}

double send_s(const hardware::Machine& machine, const Ends& ends, double bytes) {
  return ends.group == ends.peer_group
             ? send_s(machine.profile(ends.group), ends.leaves_node, bytes)
             : machine.crossing_s(ends.group, ends.peer_group, bytes);
}

}  // namespace brume::price
