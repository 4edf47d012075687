/// @file Transfers over several levels of a network.
#include <algorithm>
#include <cmath>

#include "base/text.hpp"
#include "hardware/profile.hpp"

namespace brume::hardware {

Climb climb(const Profile& profile, NodeSpan span, bool all_to_all) {
  Climb found;
  for (const deck::LevelKeys& level : profile.levels) {
    if (span.extent <= level.nodes && level.nodes % span.extent == 0) continue;
    const auto units = double(std::max<std::int64_t>(ceil_div(span.extent, level.nodes), 2));
    const int passing = all_to_all ? 1 : span.nodes;
    const bool aligned = span.extent % level.nodes == 0;
    const double blocks = aligned ? 1.0 : 2.0;
    double share = std::min(blocks * span.extent / (double(passing) * level.nodes), 1.0);
    if (all_to_all) share *= 1.0 - 1.0 / units;
    found.congestion = std::max(found.congestion, level.oversubscription * share);
    found.hops_s += std::ceil(std::log2(units)) * level.hop_s;
  }
  return found;
}

Climb climb(const Profile& profile, int from, int to, int senders) {
  Climb found;
  for (const deck::LevelKeys& level : profile.levels) {
    if (from / level.nodes == to / level.nodes) continue;
    const double share = std::min(double(senders) / level.nodes, 1.0);
    found.congestion = std::max(found.congestion, level.oversubscription * share);
    found.hops_s += level.hop_s;
  }
  return found;
}

void set_levels(Profile& profile, const deck::GroupKeys& group) {
  if (!group.levels.empty()) profile.levels = group.levels;
}

}  // namespace brume::hardware
