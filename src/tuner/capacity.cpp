#include "capacity.hpp"

#include <algorithm>
#include <numeric>

#include "space.hpp"

namespace brume::tuner {
namespace {

/// Steps from stage to stage, from the last one on, over the devices in use.
class Steps {
 public:
  Steps(const StageCapacities& capacities, const DeviceUsage& usage,
        const hardware::Cluster& cluster, const Deadline& deadline)
      : capacities_(capacities),
        usage_(usage),
        deadline_(deadline),
        fills_(cluster.num_groups() == 1) {
    least_rest_.assign(capacities.size() + 1, 0);
    most_rest_ = least_rest_;
    for (std::size_t after = capacities.size(); after-- > 0;) {
      const auto [least, most] = std::ranges::minmax(capacities[after], {}, &MeshCapacity::devices);
      least_rest_[after] = least_rest_[after + 1] + least.devices;
      most_rest_[after] = most_rest_[after + 1] + most.devices;
    }
  }

  /// visit(use, use with one stage more, layers of that stage), in one group as far as the stages
  /// before that one can take exactly the other devices.
  template <class Visit>
  void each(std::size_t after, const std::vector<int>& reached, Visit visit) const {
    deadline_.check();
    for (std::size_t use = 0; use < usage_.size(); ++use) {
      if (reached[use] < 0) continue;
      for (const MeshCapacity& mesh : capacities_[after]) {
        if (!usage_.takes(use, mesh.group, mesh.devices)) continue;
        const int rest = usage_.left(use, mesh.group) - mesh.devices;
        if (fills_ && (rest < least_rest_[after + 1] || rest > most_rest_[after + 1])) continue;
        visit(use, usage_.with(use, mesh.group, mesh.devices), mesh.layers);
      }
    }
  }

 private:
  const StageCapacities& capacities_;
  const DeviceUsage& usage_;
  const Deadline& deadline_;
  bool fills_;
  std::vector<int> least_rest_, most_rest_;  ///< [stages placed] devices of the others
};

bool any_without(const StageCapacities& capacities) {
  return std::ranges::any_of(capacities, [](const auto& meshes) { return meshes.empty(); });
}

/// Whether layers fit were any share of a mesh's layers and devices possible.
bool may_be_enough(const StageCapacities& capacities, int num_layers,
                   const hardware::Cluster& cluster) {
  int most = 0;
  std::vector<double> per_device(cluster.groups.size(), 0.0);
  for (const auto& meshes : capacities) {
    int here = 0;
    for (const MeshCapacity& mesh : meshes) {
      here = std::max(here, mesh.layers);
      double& known = per_device[mesh.group];
      known = std::max(known, double(mesh.layers) / mesh.devices);
    }
    most += here;
  }
  double together = 0.0;
  for (std::size_t i = 0; i < per_device.size(); ++i)
    together += per_device[i] * cluster.groups[i].devices();
  return most >= num_layers && together >= num_layers * (1.0 - 1e-12);
}

}  // namespace

DeviceUsage::DeviceUsage(const StageCapacities& capacities, const hardware::Cluster& cluster) {
  for (int group = 0; group < cluster.num_groups(); ++group) {
    const hardware::NodeGroup& of = cluster.groups[group];
    int unit = of.devices();
    for (const auto& meshes : capacities)
      for (const MeshCapacity& mesh : meshes)
        if (mesh.group == group) unit = std::gcd(unit, mesh.devices);
    unit = std::max(unit, 1);
    axes_.push_back(
        {of.devices(), of.devices_per_node, unit, std::size_t(of.devices() / unit) + 1, size_});
    size_ *= axes_.back().count;
  }
}

bool DeviceUsage::takes(std::size_t use, int group, int devices) const {
  const int begin = left(use, group) - devices;
  return begin >= 0 && may_begin(begin, devices, axes_[group].per_node);
}

bool DeviceUsage::complete(std::size_t use) const {
  if (axes_.size() == 1) return left(use, 0) == 0;
  for (int group = 0; group < int(axes_.size()); ++group)
    if (left(use, group) % axes_[group].per_node != 0) return false;
  return true;
}

bool enough(const StageCapacities& capacities, int num_layers, const hardware::Cluster& cluster,
            const Deadline& deadline) {
  if (any_without(capacities) || !may_be_enough(capacities, num_layers, cluster)) return false;
  if (cluster.num_groups() > 1) return true;
  const DeviceUsage usage(capacities, cluster);
  const Steps steps(capacities, usage, cluster, deadline);
  std::vector<int> last(usage.size(), -1), next;
  last[0] = 0;
  for (std::size_t after = 0; after < capacities.size(); ++after) {
    next.assign(last.size(), -1);
    steps.each(after, last, [&](std::size_t from, std::size_t to, int layers) {
      next[to] = std::max(next[to], last[from] + layers);
    });
    last.swap(next);
  }
  return last.back() >= num_layers;
}

Capacity::Capacity(const StageCapacities& capacities, const hardware::Cluster& cluster,
                   const Deadline& deadline)
    : usage_(capacities, cluster) {
  last_.assign(capacities.size() + 1, std::vector(usage_.size(), -1));
  first_ = last_;
  if (any_without(capacities)) return;
  const Steps steps(capacities, usage_, cluster, deadline);
  last_.front().front() = 0;
  for (std::size_t use = 0; use < usage_.size(); ++use)
    if (usage_.complete(use)) first_.back()[use] = 0;
  for (std::size_t after = 0; after < capacities.size(); ++after)
    steps.each(after, last_[after], [&](std::size_t from, std::size_t to, int layers) {
      last_[after + 1][to] = std::max(last_[after + 1][to], last_[after][from] + layers);
    });
  for (std::size_t after = capacities.size(); after-- > 0;)
    steps.each(after, last_[after], [&](std::size_t from, std::size_t to, int layers) {
      if (const int rest = first_[after + 1][to]; rest >= 0)
        first_[after][from] = std::max(first_[after][from], rest + layers);
    });
}

}  // namespace brume::tuner
