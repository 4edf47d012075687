#include "capacity.hpp"

#include <algorithm>
#include <numeric>

#include "space.hpp"

namespace brume::tuner {
namespace {

/// Steps from stage to stage, from the last one on, over the devices in use.
class Steps {
 public:
  Steps(const Rooms& rooms, const Uses& uses, const hardware::Cluster& cluster,
        const Deadline& deadline)
      : rooms_(rooms), uses_(uses), deadline_(deadline), fills_(cluster.num_groups() == 1) {
    least_rest_.assign(rooms.size() + 1, 0);
    most_rest_ = least_rest_;
    for (std::size_t after = rooms.size(); after-- > 0;) {
      const auto [least, most] = std::ranges::minmax(rooms[after], {}, &Room::devices);
      least_rest_[after] = least_rest_[after + 1] + least.devices;
      most_rest_[after] = most_rest_[after + 1] + most.devices;
    }
  }

  /// visit(use, use with one stage more, layers of that stage), in one group as far as the stages
  /// before that one can take exactly the other devices.
  template <class Visit>
  void each(std::size_t after, const std::vector<int>& reached, Visit visit) const {
    deadline_.check();
    for (std::size_t use = 0; use < uses_.size(); ++use) {
      if (reached[use] < 0) continue;
      for (const Room& room : rooms_[after]) {
        if (!uses_.takes(use, room.group, room.devices)) continue;
        const int rest = uses_.left(use, room.group) - room.devices;
        if (fills_ && (rest < least_rest_[after + 1] || rest > most_rest_[after + 1])) continue;
        visit(use, uses_.with(use, room.group, room.devices), room.layers);
      }
    }
  }

 private:
  const Rooms& rooms_;
  const Uses& uses_;
  const Deadline& deadline_;
  bool fills_;
  std::vector<int> least_rest_, most_rest_;  ///< [stages placed] devices of the others
};

bool any_without(const Rooms& rooms) {
  return std::ranges::any_of(rooms, [](const auto& meshes) { return meshes.empty(); });
}

/// Whether layers fit were any share of a mesh's layers and devices possible.
bool may_be_enough(const Rooms& rooms, int num_layers, const hardware::Cluster& cluster) {
  int most = 0;
  std::vector<double> per_device(cluster.groups.size(), 0.0);
  for (const auto& meshes : rooms) {
    int here = 0;
    for (const Room& room : meshes) {
      here = std::max(here, room.layers);
      double& known = per_device[std::size_t(room.group)];
      known = std::max(known, double(room.layers) / room.devices);
    }
    most += here;
  }
  double together = 0.0;
  for (std::size_t i = 0; i < per_device.size(); ++i)
    together += per_device[i] * cluster.groups[i].devices();
  return most >= num_layers && together >= num_layers * (1.0 - 1e-12);
}

}  // namespace

Uses::Uses(const Rooms& rooms, const hardware::Cluster& cluster) {
  for (int group = 0; group < cluster.num_groups(); ++group) {
    const hardware::NodeGroup& of = cluster.groups[std::size_t(group)];
    int unit = of.devices();
    for (const auto& meshes : rooms)
      for (const Room& room : meshes)
        if (room.group == group) unit = std::gcd(unit, room.devices);
    unit = std::max(unit, 1);
    axes_.push_back(
        {of.devices(), of.devices_per_node, unit, std::size_t(of.devices() / unit) + 1, size_});
    size_ *= axes_.back().count;
  }
}

bool Uses::takes(std::size_t use, int group, int devices) const {
  const int begin = left(use, group) - devices;
  return begin >= 0 && may_begin(begin, devices, axes_[std::size_t(group)].per_node);
}

bool Uses::complete(std::size_t use) const {
  if (axes_.size() == 1) return left(use, 0) == 0;
  for (int group = 0; group < int(axes_.size()); ++group)
    if (left(use, group) % axes_[std::size_t(group)].per_node != 0) return false;
  return true;
}

bool enough(const Rooms& rooms, int num_layers, const hardware::Cluster& cluster,
            const Deadline& deadline) {
  if (any_without(rooms) || !may_be_enough(rooms, num_layers, cluster)) return false;
  if (cluster.num_groups() > 1) return true;
  const Uses uses(rooms, cluster);
  const Steps steps(rooms, uses, cluster, deadline);
  std::vector<int> last(uses.size(), -1), next;
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

Capacity::Capacity(const Rooms& rooms, const hardware::Cluster& cluster, const Deadline& deadline)
    : uses_(rooms, cluster) {
  last_.assign(rooms.size() + 1, std::vector(uses_.size(), -1));
  first_ = last_;
  if (any_without(rooms)) return;
  const Steps steps(rooms, uses_, cluster, deadline);
  last_.front().front() = 0;
  for (std::size_t use = 0; use < uses_.size(); ++use)
    if (uses_.complete(use)) first_.back()[use] = 0;
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
