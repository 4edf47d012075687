/// @file How many layers a pipeline's stages can hold, by the devices they use.
#pragma once

#include <cstddef>
#include <vector>

#include "base/deadline.hpp"
#include "hardware/cluster.hpp"

namespace brume::tuner {

/// A mesh that a stage may take, and the most layers it holds there, at least 1.
struct MeshCapacity {
  int group;
  int devices;
  int layers;
};

/// [stages after][mesh], each number of devices of a group at most once.
using StageCapacities = std::vector<std::vector<MeshCapacity>>;

/// How many devices of each group are in use, as one number. Stages take a group's devices from the
/// last one on.
class DeviceUsage {
 public:
  DeviceUsage(const StageCapacities& capacities, const hardware::Cluster& cluster);

  std::size_t size() const { return size_; }
  int used(std::size_t use, int group) const {
    const Axis& axis = axes_[group];
    return int(use / axis.stride % axis.count) * axis.unit;
  }
  /// Usage after adding devices of a group.
  std::size_t with(std::size_t use, int group, int devices) const {
    const Axis& axis = axes_[group];
    return use + std::size_t(devices / axis.unit) * axis.stride;
  }
  int left(std::size_t use, int group) const { return axes_[group].devices - used(use, group); }
  /// Whether a mesh of so many devices may be the next one.
  bool takes(std::size_t use, int group, int devices) const;
  /// Whether these are all devices of a plan: all of an only group, whole nodes of several.
  bool complete(std::size_t use) const;

 private:
  struct Axis {
    int devices, per_node;
    int unit;  ///< devices in use are multiples of it
    std::size_t count, stride;
  };
  std::vector<Axis> axes_;
  std::size_t size_ = 1;
};

/// Whether stages in these meshes may hold all layers. Exact for one group; for several it may say
/// yes in vain. @throws OutOfTime
bool enough(const StageCapacities& capacities, int num_layers, const hardware::Cluster& cluster,
            const Deadline& deadline);

/// Most layers that stages can hold; -1 where devices do not add up or meshes would straddle nodes.
class Capacity {
 public:
  /// @throws OutOfTime
  Capacity(const StageCapacities& capacities, const hardware::Cluster& cluster,
           const Deadline& deadline);

  const DeviceUsage& usage() const { return usage_; }
  /// Most layers of the last `stages`, on the devices in use.
  int last(int stages, std::size_t use) const { return last_[stages][use]; }
  /// Most layers of the stages before them, on other devices.
  int first(int stages, std::size_t use) const { return first_[stages][use]; }

 private:
  DeviceUsage usage_;
  std::vector<std::vector<int>> last_, first_;  ///< [stages placed][use]
};

}  // namespace brume::tuner
