#include "hardware/cluster.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "base/units.hpp"

namespace brume::hardware {
namespace {

std::int64_t bytes_of(double gib) { return std::int64_t(std::floor(gib * bytes_per_gib)); }

NodeGroup group(const deck::GroupKeys& keys) {
  require(keys.nodes >= 1 && keys.devices_per_node >= 1, Failure::input,
          "a cluster needs at least one node and one device, not {} x {}", keys.nodes,
          keys.devices_per_node);
  require(keys.memory_gib > 0.0, Failure::input, "cluster.memory_gib must be above 0, not {}",
          keys.memory_gib);
  require(keys.host_memory_gib >= 0.0, Failure::input,
          "cluster.host_memory_gib must not be negative, not {}", keys.host_memory_gib);
  return {.name = keys.name,
          .nodes = keys.nodes,
          .devices_per_node = keys.devices_per_node,
          .memory_bytes = bytes_of(keys.memory_gib),
          .host_memory_bytes = bytes_of(keys.host_memory_gib),
          .disk_bytes = bytes_of(keys.disk_gib)};
}

}  // namespace

int Cluster::nodes() const {
  int sum = 0;
  for (const NodeGroup& group : groups) sum += group.nodes;
  return sum;
}

int Cluster::devices() const {
  int sum = 0;
  for (const NodeGroup& group : groups) sum += group.devices();
  return sum;
}

std::string Cluster::text() const {
  std::vector<std::string> parts;
  for (const NodeGroup& g : groups)
    parts.push_back(fmt::format("{} x {}{}{}", g.nodes, g.devices_per_node,
                                groups.size() > 1 ? " " : "", groups.size() > 1 ? g.name : ""));
  return fmt::format("{}", fmt::join(parts, " + "));
}

int Cluster::index(const std::string& group) const {
  if (groups.size() == 1 && (group.empty() || group == groups[0].name)) return 0;
  const auto found = std::ranges::find(groups, group, &NodeGroup::name);
  if (found != groups.end()) return int(found - groups.begin());
  std::vector<std::string> names;
  for (const NodeGroup& g : groups) names.push_back("'" + g.name + "'");
  throw Error(Failure::input, "the cluster has no group '{}': it has {}", group,
              fmt::join(names, ", "));
}

Cluster cluster(const deck::ClusterKeys& keys) {
  std::vector<NodeGroup> groups;
  for (const deck::GroupKeys& of_group : keys.all_groups()) groups.push_back(group(of_group));
  // Plans name groups only where there are several.
  if (groups.size() == 1) groups[0].name.clear();
  return groups;
}

}  // namespace brume::hardware
