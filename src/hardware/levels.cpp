/// @file Transfers over several levels of a network.
#include <algorithm>
#include <cmath>
#include <map>

#include "hardware/profile.hpp"

namespace brume::hardware {
namespace {

/// The most that leaves a unit of a level at once, in bandwidths of a node, and the largest number
/// of units that an extent is in.
struct Leaving {
  double most = 0.0;
  int units = 1;
};

Leaving leaving(int unit, const NodeSpan& span, bool all_to_all) {
  std::map<int, double> of_unit;
  Leaving found;
  const double groups = double(span.extent) / span.nodes;
  for (int begin = span.first; begin < span.first + span.stage_nodes; begin += span.extent) {
    const int end = begin + span.extent, first = begin / unit, last = (end - 1) / unit;
    if (first == last) continue;
    found.units = std::max(found.units, last - first + 1);
    const auto add = [&](int u) {
      const double here = std::min(end, (u + 1) * unit) - std::max(begin, u * unit);
      of_unit[u] += all_to_all ? here * (1.0 - here / span.extent) : std::min(groups, here);
    };
    add(first);
    add(last);
    if (last - first > 1) add(first + 1);  // as all units between
  }
  for (const auto& [u, load] : of_unit) found.most = std::max(found.most, load);
  return found;
}

}  // namespace

Congestion congestion(const Profile& profile, const NodeSpan& span, bool all_to_all) {
  Congestion found;
  if (span.extent == 1) return found;
  for (const deck::LevelKeys& level : profile.levels) {
    const Leaving loads = leaving(level.nodes, span, all_to_all);
    if (loads.units == 1) continue;
    found.times = std::max(found.times, level.oversubscription * loads.most / level.nodes);
    found.hops_s += std::ceil(std::log2(double(loads.units))) * level.hop_s;
  }
  return found;
}

Congestion congestion(const Profile& profile, int from, int to, int senders) {
  Congestion found;
  for (const deck::LevelKeys& level : profile.levels) {
    if (from / level.nodes == to / level.nodes) continue;
    const double share = std::min(double(senders) / level.nodes, 1.0);
    found.times = std::max(found.times, level.oversubscription * share);
    found.hops_s += level.hop_s;
  }
  return found;
}

int first_in_unit(const Profile& profile, int first, int nodes) {
  int unit = 1;
  bool aligned = true;
  for (const deck::LevelKeys& level : profile.levels) {
    unit = level.nodes;
    aligned = aligned && first % nodes == 0 && (unit % nodes == 0 || nodes % unit == 0);
  }
  return aligned ? 0 : first % unit;
}

void set_levels(Profile& profile, const deck::GroupKeys& group) {
  if (!group.levels.empty()) profile.levels = group.levels;
}

}  // namespace brume::hardware
