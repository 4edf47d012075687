#include "capacity.hpp"

#include <algorithm>
#include <numeric>

namespace brume::tuner {
namespace {

/// Devices that meshes are multiples of.
int unit_of(const Rooms& rooms, int devices) {
  int unit = devices;
  for (const auto& meshes : rooms)
    for (const Room& room : meshes) unit = std::gcd(unit, room.devices);
  return unit;
}

/// Steps from stage to stage, from the last one on, over the units in use.
class Steps {
 public:
  Steps(const Rooms& rooms, int devices, int devices_per_node, int unit)
      : rooms_(rooms), devices_(devices), per_node_(devices_per_node), unit_(unit) {
    least_rest_.assign(rooms.size() + 1, 0);
    most_rest_ = least_rest_;
    for (std::size_t after = rooms.size(); after-- > 0;) {
      const auto [least, most] = std::ranges::minmax(rooms[after], {}, &Room::devices);
      least_rest_[after] = least_rest_[after + 1] + least.devices;
      most_rest_[after] = most_rest_[after + 1] + most.devices;
    }
  }

  std::size_t size() const { return std::size_t(devices_ / unit_) + 1; }

  /// visit(units used, units with one stage more, layers of that stage), as far as the stages
  /// before that one can take exactly the other devices.
  template <class Visit>
  void each(std::size_t after, const std::vector<int>& reached, Visit visit) const {
    for (std::size_t units = 0; units < size(); ++units) {
      if (reached[units] < 0) continue;
      const int left = devices_ - int(units) * unit_;
      // A mesh ends where the devices in use begin; within a node it begins there too.
      const int on_node = left % per_node_;
      for (const Room& room : rooms_[after]) {
        const int rest = left - room.devices;
        if (on_node != 0 && room.devices > on_node) continue;
        if (rest < least_rest_[after + 1] || rest > most_rest_[after + 1]) continue;
        visit(units, units + std::size_t(room.devices / unit_), room.layers);
      }
    }
  }

 private:
  const Rooms& rooms_;
  int devices_, per_node_, unit_;
  std::vector<int> least_rest_, most_rest_;  ///< [stages placed] devices of the others
};

bool any_without(const Rooms& rooms) {
  return std::ranges::any_of(rooms, [](const auto& meshes) { return meshes.empty(); });
}

/// Whether layers fit were any share of a mesh's layers and devices possible.
bool may_be_enough(const Rooms& rooms, int num_layers, int devices) {
  int most = 0;
  double per_device = 0.0;
  for (const auto& meshes : rooms) {
    int here = 0;
    for (const Room& room : meshes) {
      here = std::max(here, room.layers);
      per_device = std::max(per_device, double(room.layers) / room.devices);
    }
    most += here;
  }
  return most >= num_layers && per_device * devices >= num_layers * (1.0 - 1e-12);
}

}  // namespace

bool enough(const Rooms& rooms, int num_layers, int devices, int devices_per_node) {
  if (any_without(rooms) || !may_be_enough(rooms, num_layers, devices)) return false;
  const Steps steps(rooms, devices, devices_per_node, unit_of(rooms, devices));
  std::vector<int> last(steps.size(), -1), next;
  last[0] = 0;
  for (std::size_t after = 0; after < rooms.size(); ++after) {
    next.assign(last.size(), -1);
    steps.each(after, last, [&](std::size_t from, std::size_t to, int layers) {
      next[to] = std::max(next[to], last[from] + layers);
    });
    last.swap(next);
  }
  return last.back() >= num_layers;
}

Capacity::Capacity(const Rooms& rooms, int devices, int devices_per_node)
    : unit_(unit_of(rooms, devices)) {
  last_.assign(rooms.size() + 1, std::vector(std::size_t(devices / unit_) + 1, -1));
  first_ = last_;
  if (any_without(rooms)) return;
  const Steps steps(rooms, devices, devices_per_node, unit_);
  last_.front().front() = 0;
  first_.back().back() = 0;
  for (std::size_t after = 0; after < rooms.size(); ++after)
    steps.each(after, last_[after], [&](std::size_t from, std::size_t to, int layers) {
      last_[after + 1][to] = std::max(last_[after + 1][to], last_[after][from] + layers);
    });
  for (std::size_t after = rooms.size(); after-- > 0;)
    steps.each(after, last_[after], [&](std::size_t from, std::size_t to, int layers) {
      if (const int rest = first_[after + 1][to]; rest >= 0)
        first_[after][from] = std::max(first_[after][from], rest + layers);
    });
}

}  // namespace brume::tuner
