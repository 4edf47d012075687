/// @file The machine a plan is made for: nodes, devices, memory limits.
#pragma once

#include <cstdint>

#include "deck/deck.hpp"

namespace brume::hardware {

struct Cluster {
  int nodes = 1;
  int devices_per_node = 1;
  std::int64_t memory_bytes = 0;       ///< per device, what a plan may use
  std::int64_t host_memory_bytes = 0;  ///< per node, for what is offloaded

  int devices() const { return nodes * devices_per_node; }
};

Cluster cluster(const deck::ClusterKeys& keys);

}  // namespace brume::hardware
