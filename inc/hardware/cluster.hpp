/// @file The machine a plan is made for: groups of nodes, devices, memory limits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "deck/deck.hpp"

namespace brume::hardware {

/// Nodes that are alike.
struct NodeGroup {
  std::string name = {};  ///< empty where there is one group only
  int nodes = 1;
  int devices_per_node = 1;
  std::int64_t memory_bytes = 0;       ///< per device, what a plan may use
  std::int64_t host_memory_bytes = 0;  ///< per node, for what is offloaded
  std::int64_t disk_bytes = 0;         ///< per node, of this what host memory does not hold
  std::int64_t reserved_bytes = 0;     ///< per device, what `usable` took off memory_bytes
  bool on_device = false;  ///< ranks compute on GPUs, whose kernels have limits of their own

  std::int64_t given_bytes() const { return memory_bytes + reserved_bytes; }  ///< memory_gib
  int devices() const { return nodes * devices_per_node; }
};

/// One group or several, in the deck's order. Ranks of a job are numbered group by group.
struct Cluster {
  Cluster() = default;
  Cluster(NodeGroup group) : groups{std::move(group)} {}
  Cluster(std::vector<NodeGroup> groups_) : groups(std::move(groups_)) {}

  std::vector<NodeGroup> groups{NodeGroup{}};

  int num_groups() const { return int(groups.size()); }
  int nodes() const;
  int devices() const;
  /// "2 x 8", or "1 x 8 a100 + 2 x 8 l4": nodes x devices.
  std::string text() const;
  /// The place of a group's name. @throws Error(input) naming those that there are
  int index(const std::string& group) const;
};

Cluster cluster(const deck::ClusterKeys& keys);

}  // namespace brume::hardware
