#include "pipeline.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "capacity.hpp"
#include "states.hpp"

namespace brume::tuner {
namespace {

class DynamicProgram {
 public:
  DynamicProgram(const Pipeline& pipeline, double threshold_s, double cutoff_s,
                 const Prices& prices, std::size_t most_labels)
      : pipeline_(pipeline),
        num_groups_(pipeline.cluster.num_groups()),
        cutoff_s_(cutoff_s),
        prices_(prices),
        most_labels_(most_labels) {
    for (const auto& cells : pipeline.cells) meshes_.push_back(meshes(cells, threshold_s));
    capacity_.emplace(rooms(), pipeline.cluster, pipeline.deadline);
    bound_rest();
  }

  Least solve();

 private:
  using Meshes = std::vector<std::vector<Mesh>>;  ///< [turn]

  /// Whose turn it is: a stage of this group, before one of that group.
  int turn_of(int group, int after) const {
    return pipeline_.neighbours_matter ? group * num_groups_ + after : 0;
  }
  int num_turns() const { return pipeline_.neighbours_matter ? num_groups_ * num_groups_ : 1; }
  const hardware::NodeGroup& group(int index) const {
    return pipeline_.cluster.groups[std::size_t(index)];
  }

  Meshes meshes(const std::vector<Cell>& cells, double threshold_s) const;
  Rooms rooms() const;
  void bound_rest();
  double rest_s(std::size_t placed, std::size_t use, int layers) const;
  bool add_host(Label& label, const Label& later, std::size_t from, std::size_t use,
                const Mesh& mesh) const;
  void extend(int after, const States::State& from, States& next);
  void extend(int after, const States::State& from, const Mesh& mesh, const Arc& arc, States& next);
  void offer(std::vector<int>& labels, const Label& label);
  bool beats(const Label& a, const Label& b) const {
    if (a.sum_s > b.sum_s || a.least_s > b.least_s) return false;
    for (int g = 0; pipeline_.host_matters && g < num_groups_; ++g)
      if (a.host_bytes[std::size_t(g)] > b.host_bytes[std::size_t(g)]) return false;
    return true;
  }

  const Pipeline& pipeline_;
  int num_groups_;
  double cutoff_s_;
  Prices prices_;
  std::size_t most_labels_;
  bool merged_ = false;
  std::vector<Meshes> meshes_;  ///< [stages after]
  std::optional<Capacity> capacity_;
  std::vector<double> rest_s_;  ///< [stages placed] least sum of the other stages' stable times
  std::vector<double> rest_layer_s_;   ///< the same a layer
  std::vector<double> rest_priced_s_;  ///< the same at the prices
  std::vector<Label> labels_;
};

DynamicProgram::Meshes DynamicProgram::meshes(const std::vector<Cell>& cells,
                                              double threshold_s) const {
  using Key = std::tuple<int, int, int, int, int>;  // turn, next turn, group, devices, layers
  std::map<Key, std::vector<const Point*>> all;
  for (const Cell& cell : cells) {
    pipeline_.deadline.check();
    const Layout& layout = pipeline_.layout(cell);
    auto& points = all[{turn_of(layout.group, cell.after), turn_of(cell.before, layout.group),
                        layout.group, layout.devices(), cell.layers}];
    for (const Point& point : cell.points)
      if (point.stable_s <= threshold_s) points.push_back(&point);
  }
  Meshes found(static_cast<std::size_t>(num_turns()));
  for (auto& [key, points] : all) {
    std::ranges::stable_sort(points, {}, [](const Point* p) {
      return std::pair{p->stable_s, p->whole_s()};
    });
    const auto [turn, next_turn, of, devices, layers] = key;
    Arc arc{layers, {}};
    for (const Point* p : points) {
      const bool shared = pipeline_.host_matters && devices < group(of).devices_per_node;
      if (shared || arc.points.empty() || p->whole_s() < arc.points.back()->whole_s())
        arc.points.push_back(p);
    }
    if (arc.points.empty()) continue;
    std::vector<Mesh>& here = found[std::size_t(turn)];
    if (here.empty() || std::tie(here.back().next_turn, here.back().group, here.back().devices) !=
                            std::tie(next_turn, of, devices))
      here.push_back({of, devices, next_turn, {}});
    here.back().arcs.push_back(std::move(arc));
  }
  return found;
}

Rooms DynamicProgram::rooms() const {
  Rooms rooms;
  for (const Meshes& meshes : meshes_) {
    std::map<std::pair<int, int>, int> most;  // layers, by group and devices
    for (const auto& of_turn : meshes)
      for (const Mesh& mesh : of_turn) {
        int& layers = most[{mesh.group, mesh.devices}];
        layers = std::max(layers, mesh.arcs.back().layers);
      }
    rooms.emplace_back();
    for (const auto& [mesh, layers] : most)
      rooms.back().push_back({mesh.first, mesh.second, layers});
  }
  return rooms;
}

/// Whatever stages come before, they take at least so long together.
void DynamicProgram::bound_rest() {
  const std::size_t count = meshes_.size();
  rest_s_.assign(count + 1, 0.0);
  rest_layer_s_.assign(count + 1, infinity);
  rest_priced_s_.assign(count + 1, 0.0);
  for (std::size_t after = count; after-- > 0;) {
    double least_s = infinity, layer_s = rest_layer_s_[after + 1], priced_s = infinity;
    for (const auto& of_turn : meshes_[after])
      for (const Mesh& mesh : of_turn)
        for (const Arc& arc : mesh.arcs) {
          const double stable_s = arc.points[0]->stable_s;
          least_s = std::min(least_s, stable_s);
          layer_s = std::min(layer_s, stable_s / arc.layers);
          priced_s = std::min(priced_s,
                              stable_s + prices_.device_s[std::size_t(mesh.group)] * mesh.devices -
                                  prices_.layer_s * arc.layers);
        }
    rest_s_[after] = rest_s_[after + 1] + least_s;
    rest_layer_s_[after] = layer_s;
    rest_priced_s_[after] = rest_priced_s_[after + 1] + priced_s;
  }
}

/// Least sum of stable times of what is left, on the devices and for the layers that are left.
double DynamicProgram::rest_s(std::size_t placed, std::size_t use, int layers) const {
  double priced_s = rest_priced_s_[placed] + prices_.layer_s * layers;
  for (int g = 0; g < num_groups_; ++g)
    priced_s -= prices_.device_s[std::size_t(g)] * capacity_->uses().left(use, g);
  return std::max({rest_s_[placed], layers == 0 ? 0.0 : layers * rest_layer_s_[placed],
                   priced_s * (1.0 - bound_rounding)});
}

/// Counts host bytes on the node that a stage's mesh shares. @return whether they fit
bool DynamicProgram::add_host(Label& label, const Label& later, std::size_t from, std::size_t use,
                              const Mesh& mesh) const {
  label.host_bytes = later.host_bytes;
  const hardware::NodeGroup& of = group(mesh.group);
  if (mesh.devices > of.devices_per_node) return true;
  const auto within_node = [&](std::size_t at) {
    return capacity_->uses().left(at, mesh.group) % of.devices_per_node != 0;
  };
  double& bytes = label.host_bytes[std::size_t(mesh.group)];
  bytes = mesh.devices * label.point->host_bytes + (within_node(from) ? bytes : 0.0);
  if (bytes > double(of.host_memory_bytes)) return false;
  if (!within_node(use)) bytes = 0.0;  // nobody shares it any more
  return true;
}

void DynamicProgram::offer(std::vector<int>& labels, const Label& label) {
  for (int id : labels)
    if (beats(labels_[std::size_t(id)], label)) return;
  std::erase_if(labels, [&](int id) { return beats(label, labels_[std::size_t(id)]); });
  if (labels.size() < most_labels_) {
    labels.push_back(int(labels_.size()));
    labels_.push_back(label);
    return;
  }
  // One that is at least as good as both keeps the bound a bound.
  merged_ = true;
  Label merged = labels_[std::size_t(labels.back())];
  merged.sum_s = std::min(merged.sum_s, label.sum_s);
  merged.least_s = std::min(merged.least_s, label.least_s);
  for (std::size_t g = 0; g < merged.host_bytes.size(); ++g)
    merged.host_bytes[g] = std::min(merged.host_bytes[g], label.host_bytes[g]);
  labels.back() = int(labels_.size());
  labels_.push_back(merged);
}

void DynamicProgram::extend(int after, const States::State& from, States& next) {
  const int placed = after + 1, others = pipeline_.num_layers - from.layers;
  const bool is_first = placed == pipeline_.frame.num_stages;
  const Uses& uses = capacity_->uses();
  for (const Mesh& mesh : meshes_[std::size_t(after)][std::size_t(from.turn)]) {
    if (!uses.takes(from.use, mesh.group, mesh.devices)) continue;
    pipeline_.deadline.check();
    const int room = capacity_->first(placed, uses.with(from.use, mesh.group, mesh.devices));
    if (room < 0) continue;
    for (auto arc = std::ranges::lower_bound(mesh.arcs, others - room, {}, &Arc::layers);
         arc != mesh.arcs.end() && arc->layers <= others; ++arc)
      if (is_first == (arc->layers == others)) extend(after, from, mesh, *arc, next);
  }
}

void DynamicProgram::extend(int after, const States::State& from, const Mesh& mesh, const Arc& arc,
                            States& next) {
  const std::size_t use = capacity_->uses().with(from.use, mesh.group, mesh.devices);
  const double rest_s =
      this->rest_s(std::size_t(after) + 1, use, pipeline_.num_layers - from.layers - arc.layers);
  std::vector<int>* labels = nullptr;
  for (const int id : from.labels)
    for (const Point* point : arc.points) {
      const Label& later = labels_[std::size_t(id)];
      Label label{.sum_s = point->stable_s + later.sum_s,
                  .least_s = std::max(point->whole_s() + later.sum_s, later.least_s),
                  .next = id,
                  .point = point};
      if (std::max(label.least_s, label.sum_s + rest_s) >= cutoff_s_) continue;
      if (pipeline_.host_matters && !add_host(label, later, from.use, use, mesh)) continue;
      if (!labels) labels = &next.labels(use, mesh.next_turn, from.layers + arc.layers);
      offer(*labels, label);
    }
}

Least DynamicProgram::solve() {
  Least least{.sum_s = cutoff_s_, .stages = {}};
  if (capacity_->first(0, 0) < pipeline_.num_layers) return {};
  States next(capacity_->uses().size(), num_turns(), pipeline_.num_layers);
  labels_.push_back({0.0, 0.0});
  for (int g = 0; g < num_groups_; ++g) next.labels(0, turn_of(g, g), 0) = {0};
  for (int after = 0; after < pipeline_.frame.num_stages; ++after)
    for (const States::State& state : next.take()) extend(after, state, next);
  int best = -1;
  for (const States::State& state : next.take())
    for (int id : state.labels)
      if (best < 0 || labels_[std::size_t(id)].least_s < labels_[std::size_t(best)].least_s)
        best = id;
  if (best < 0) return least;
  least.sum_s = labels_[std::size_t(best)].least_s;
  for (int id = best; labels_[std::size_t(id)].point; id = labels_[std::size_t(id)].next)
    least.stages.push_back(*labels_[std::size_t(id)].point);
  least.merged = merged_;
  return least;
}

}  // namespace

double iteration_time(const std::vector<Point>& stages, int microbatches) {
  std::vector<analyzer::StageTime> times;
  for (const Point& point : stages) times.push_back({point.stable_s, point.delta_s});
  return analyzer::iteration_time(times, microbatches);
}

bool fits_host(const Pipeline& pipeline, const std::vector<Point>& stages) {
  PerGroup<int> first{};
  PerGroup<double> on_node{};
  for (const Point& point : stages) {
    const Layout& mesh = pipeline.layout(point);
    const auto g = std::size_t(mesh.group);
    const hardware::NodeGroup& group = pipeline.cluster.groups[g];
    if (first[g] % group.devices_per_node == 0) on_node[g] = 0.0;
    on_node[g] += point.host_bytes * mesh.devices_per_node;
    if (on_node[g] > double(group.host_memory_bytes)) return false;
    first[g] += mesh.devices();
  }
  return true;
}

Least least_sum(const Pipeline& pipeline, double threshold_s, double cutoff_s, const Prices& prices,
                std::size_t most_labels) {
  return DynamicProgram(pipeline, threshold_s, cutoff_s, prices, most_labels).solve();
}

}  // namespace brume::tuner
