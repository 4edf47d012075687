#include "hardware/cluster.hpp"

#include <cmath>

#include "base/error.hpp"

namespace brume::hardware {
namespace {

std::int64_t bytes_of(double gib) { return std::int64_t(std::floor(gib * 1024 * 1024 * 1024)); }

}  // namespace

Cluster cluster(const deck::ClusterKeys& keys) {
  require(keys.nodes >= 1 && keys.devices_per_node >= 1, Failure::input,
          "a cluster needs at least one node and one device, not {} x {}", keys.nodes,
          keys.devices_per_node);
  require(keys.memory_gib > 0.0, Failure::input, "cluster.memory_gib must be above 0, not {}",
          keys.memory_gib);
  require(keys.host_memory_gib >= 0.0, Failure::input,
          "cluster.host_memory_gib must not be negative, not {}", keys.host_memory_gib);
  return {.nodes = keys.nodes,
          .devices_per_node = keys.devices_per_node,
          .memory_bytes = bytes_of(keys.memory_gib),
          .host_memory_bytes = bytes_of(keys.host_memory_gib)};
}

}  // namespace brume::hardware
