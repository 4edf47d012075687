/// @file Plans to measure, and the machine they are predicted for.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "comm/session.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "hardware/cluster.hpp"
#include "plan/plan.hpp"
#include "profiler/profiler.hpp"

namespace brume::perf {

/// All ranks on one node, with more memory than the plans here need.
inline hardware::Cluster roomy_cluster(int ranks) {
  const std::int64_t device_bytes = device::describe_device().memory_bytes;
  return hardware::NodeGroup{
      .nodes = 1,
      .devices_per_node = ranks,
      .memory_bytes = device_bytes > 0 ? device_bytes : std::int64_t{4} << 30,
      .host_memory_bytes = std::int64_t{device_bytes > 0 ? 64 : 8} << 30};
}

/// Measured now, the same on all ranks. Collective over `world`.
inline hardware::Profile measured_profile(const comm::Session& session, comm::Communicator& world,
                                          const model::Config& model,
                                          const profiler::Shapes& shapes) {
  const hardware::ProfileKey key =
      profiler::key(world, session.ranks_per_node(),
                    device::threads_per_rank(session.ranks_per_node()), model, shapes);
  return profiler::measure(world, key, roomy_cluster(world.size()), model, shapes);
}

/// The same for tensor parallelism on as many ranks as any power of two.
inline hardware::Profile measured_profile(const comm::Session& session, comm::Communicator& world,
                                          const model::Config& model,
                                          const std::vector<int>& microbatches) {
  profiler::Shapes shapes{.splits = {}, .groups = {}};
  for (int size = 1; size <= world.size(); size *= 2) {
    for (int microbatch : microbatches) shapes.splits.push_back({size, microbatch});
    if (size > 1) shapes.groups.push_back(size);
  }
  return measured_profile(session, world, model, shapes);
}

}  // namespace brume::perf
