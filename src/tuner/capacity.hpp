/// @file How many layers a pipeline's stages can hold, by the devices they use.
#pragma once

#include <vector>

namespace brume::tuner {

/// A mesh that a stage may take, and the most layers it holds there, at least 1.
struct Room {
  int devices;
  int layers;
};

/// [stages after][mesh], each number of devices at most once.
using Rooms = std::vector<std::vector<Room>>;

/// Whether stages in these rooms can hold all layers on exactly so many devices.
bool enough(const Rooms& rooms, int num_layers, int devices, int devices_per_node);

/// Most layers that stages can hold; -1 where devices do not add up or meshes would straddle nodes.
class Capacity {
 public:
  Capacity(const Rooms& rooms, int devices, int devices_per_node);

  /// Devices in use are multiples of it.
  int unit() const { return unit_; }
  /// Of the last `stages`, on the last `used` devices.
  int last(int stages, int used) const { return at(last_, stages, used); }
  /// Of the stages before those, on the other devices.
  int first(int stages, int used) const { return at(first_, stages, used); }

 private:
  using Table = std::vector<std::vector<int>>;  ///< [stages placed][units used]
  int at(const Table& table, int stages, int used) const {
    return table[std::size_t(stages)][std::size_t(used / unit_)];
  }

  int unit_;
  Table last_, first_;
};

}  // namespace brume::tuner
