#include "pipeline.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "capacity.hpp"

namespace brume::tuner {
namespace {

constexpr double rounding = 1e-9;        ///< of prices, whose sums cancel
constexpr std::size_t most_labels = 64;  ///< of one state; more are merged

/// A way to place the last stages.
struct Label {
  double sum_s;       ///< sum of their stable times
  double least_s;     ///< max over them of whole time + later stable times
  double host_bytes;  ///< on the node of the first of them, when it is shared
  int next = -1;      ///< label of the stages after
  const Point* point = nullptr;
};

/// Points of one number of layers under the threshold.
struct Arc {
  int layers;
  std::vector<const Point*> points;
};

/// What a stage may take on a mesh of so many devices, by rising layers.
struct Mesh {
  int devices;
  std::vector<Arc> arcs;
};

/// Labels by devices and layers used.
class States {
 public:
  struct State {
    int devices, layers;
    std::vector<int> labels;
  };

  States(int devices, int unit, int layers)
      : unit_(unit),
        width_(std::size_t(layers) + 1),
        places_((std::size_t(devices / unit) + 1) * width_, -1) {}

  /// Valid until another state is asked for.
  std::vector<int>& labels(int devices, int layers) {
    int& at = place(devices, layers);
    if (at < 0) {
      at = int(all_.size());
      all_.push_back({devices, layers, {}});
    }
    return all_[std::size_t(at)].labels;
  }

  /// In rising order; forgets them.
  std::vector<State> take() {
    for (const State& state : all_) place(state.devices, state.layers) = -1;
    std::ranges::sort(all_, {}, [](const State& s) { return std::pair{s.devices, s.layers}; });
    return std::exchange(all_, {});
  }

 private:
  int& place(int devices, int layers) {
    return places_[std::size_t(devices / unit_) * width_ + std::size_t(layers)];
  }

  int unit_;
  std::size_t width_;
  std::vector<int> places_;  ///< [units of devices, layers]
  std::vector<State> all_;
};

class DynamicProgram {
 public:
  DynamicProgram(const Pipeline& pipeline, double threshold_s, double cutoff_s,
                 const Prices& prices)
      : pipeline_(pipeline), cutoff_s_(cutoff_s), prices_(prices) {
    for (const auto& cells : pipeline.cells) meshes_.push_back(meshes(cells, threshold_s));
    capacity_.emplace(rooms(), pipeline.devices, pipeline.devices_per_node);
    bound_rest();
  }

  Least solve();

 private:
  std::vector<Mesh> meshes(const std::vector<Cell>& cells, double threshold_s) const;
  Rooms rooms() const;
  void bound_rest();
  void extend(int after, const States::State& from, States& next);
  void extend(int after, const States::State& from, int devices, const Arc& arc, States& next);
  void offer(std::vector<int>& labels, const Label& label, bool shares_node);
  bool beats(const Label& a, const Label& b, bool shares_node) const {
    return a.sum_s <= b.sum_s && a.least_s <= b.least_s &&
           (!shares_node || a.host_bytes <= b.host_bytes);
  }

  const Pipeline& pipeline_;
  double cutoff_s_;
  Prices prices_;
  std::vector<std::vector<Mesh>> meshes_;  ///< [stages after]
  std::optional<Capacity> capacity_;
  std::vector<double> rest_s_;  ///< [stages placed] least sum of the other stages' stable times
  std::vector<double> rest_layer_s_;   ///< the same a layer
  std::vector<double> rest_priced_s_;  ///< the same at the prices
  std::vector<Label> labels_;
};

std::vector<Mesh> DynamicProgram::meshes(const std::vector<Cell>& cells, double threshold_s) const {
  std::map<std::pair<int, int>, std::vector<const Point*>> all;  // by devices, layers
  for (const Cell& cell : cells) {
    auto& points = all[{pipeline_.frame.layouts[std::size_t(cell.layout)].devices(), cell.layers}];
    for (const Point& point : cell.points)
      if (point.stable_s <= threshold_s) points.push_back(&point);
  }
  std::vector<Mesh> found;
  for (auto& [size, points] : all) {
    std::ranges::stable_sort(points, {}, [](const Point* p) {
      return std::pair{p->stable_s, p->whole_s()};
    });
    const auto [devices, layers] = size;
    Arc arc{layers, {}};
    for (const Point* p : points) {
      const bool shared = pipeline_.host_matters && devices < pipeline_.devices_per_node;
      if (shared || arc.points.empty() || p->whole_s() < arc.points.back()->whole_s())
        arc.points.push_back(p);
    }
    if (arc.points.empty()) continue;
    if (found.empty() || found.back().devices != devices) found.push_back({devices, {}});
    found.back().arcs.push_back(std::move(arc));
  }
  return found;
}

Rooms DynamicProgram::rooms() const {
  Rooms rooms;
  for (const auto& meshes : meshes_) {
    rooms.emplace_back();
    for (const Mesh& mesh : meshes) rooms.back().push_back({mesh.devices, mesh.arcs.back().layers});
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
    for (const Mesh& mesh : meshes_[after])
      for (const Arc& arc : mesh.arcs) {
        least_s = std::min(least_s, arc.points[0]->stable_s);
        layer_s = std::min(layer_s, arc.points[0]->stable_s / arc.layers);
        priced_s = std::min(priced_s, arc.points[0]->stable_s + prices_.device_s * mesh.devices -
                                          prices_.layer_s * arc.layers);
      }
    rest_s_[after] = rest_s_[after + 1] + least_s;
    rest_layer_s_[after] = layer_s;
    rest_priced_s_[after] = rest_priced_s_[after + 1] + priced_s;
  }
}

void DynamicProgram::offer(std::vector<int>& labels, const Label& label, bool shares_node) {
  for (int id : labels)
    if (beats(labels_[std::size_t(id)], label, shares_node)) return;
  std::erase_if(labels,
                [&](int id) { return beats(label, labels_[std::size_t(id)], shares_node); });
  if (labels.size() < most_labels) {
    labels.push_back(int(labels_.size()));
    labels_.push_back(label);
    return;
  }
  // Too many: one that is at least as good as both keeps the bound a bound.
  Label merged = labels_[std::size_t(labels.back())];
  merged.sum_s = std::min(merged.sum_s, label.sum_s);
  merged.least_s = std::min(merged.least_s, label.least_s);
  merged.host_bytes = std::min(merged.host_bytes, label.host_bytes);
  labels.back() = int(labels_.size());
  labels_.push_back(merged);
}

void DynamicProgram::extend(int after, const States::State& from, States& next) {
  const int placed = after + 1, others = pipeline_.num_layers - from.layers;
  const bool is_first = placed == pipeline_.frame.num_stages;
  for (const Mesh& mesh : meshes_[std::size_t(after)]) {
    const int begin = pipeline_.devices - from.devices - mesh.devices;
    if (begin < 0 || is_first != (begin == 0)) continue;
    if (!may_begin(begin, mesh.devices, pipeline_.devices_per_node)) continue;
    const int room = capacity_->first(placed, from.devices + mesh.devices);
    if (room < 0) continue;
    for (auto arc = std::ranges::lower_bound(mesh.arcs, others - room, {}, &Arc::layers);
         arc != mesh.arcs.end() && arc->layers <= others; ++arc)
      if (is_first == (arc->layers == others)) extend(after, from, mesh.devices, *arc, next);
  }
}

void DynamicProgram::extend(int after, const States::State& from, int devices, const Arc& arc,
                            States& next) {
  const auto placed = std::size_t(after) + 1;
  const int per_node = pipeline_.devices_per_node, used = from.devices + devices;
  const int left = pipeline_.num_layers - from.layers - arc.layers;
  const double priced_s = rest_priced_s_[placed] + prices_.layer_s * left -
                          prices_.device_s * (pipeline_.devices - used);
  const double rest_s = std::max({rest_s_[placed], left == 0 ? 0.0 : left * rest_layer_s_[placed],
                                  priced_s * (1.0 - rounding)});
  const bool host_matters = pipeline_.host_matters;
  const bool shares_node = host_matters && (pipeline_.devices - used) % per_node != 0;
  const bool joins_node = host_matters && (pipeline_.devices - from.devices) % per_node != 0;
  std::vector<int>* labels = nullptr;
  for (const int id : from.labels)
    for (const Point* point : arc.points) {
      const Label& later = labels_[std::size_t(id)];
      Label label{.sum_s = point->stable_s + later.sum_s,
                  .least_s = std::max(point->whole_s() + later.sum_s, later.least_s),
                  .host_bytes = 0.0,
                  .next = id,
                  .point = point};
      if (std::max(label.least_s, label.sum_s + rest_s) >= cutoff_s_) continue;
      if (host_matters && devices <= per_node) {
        label.host_bytes = devices * point->host_bytes + (joins_node ? later.host_bytes : 0.0);
        if (label.host_bytes > pipeline_.node_host_bytes) continue;
      }
      if (!labels) labels = &next.labels(used, from.layers + arc.layers);
      offer(*labels, label, shares_node);
    }
}

Least DynamicProgram::solve() {
  Least least{.sum_s = cutoff_s_, .stages = {}};
  if (capacity_->first(0, 0) < pipeline_.num_layers) return {};
  States next(pipeline_.devices, capacity_->unit(), pipeline_.num_layers);
  next.labels(0, 0).push_back(0);
  labels_.push_back({0.0, 0.0, 0.0});
  for (int after = 0; after < pipeline_.frame.num_stages; ++after)
    for (const States::State& state : next.take()) extend(after, state, next);
  int best = -1;
  for (int id : next.labels(pipeline_.devices, pipeline_.num_layers))
    if (best < 0 || labels_[std::size_t(id)].least_s < labels_[std::size_t(best)].least_s)
      best = id;
  if (best < 0) return least;
  least.sum_s = labels_[std::size_t(best)].least_s;
  for (int id = best; labels_[std::size_t(id)].point; id = labels_[std::size_t(id)].next)
    least.stages.push_back(*labels_[std::size_t(id)].point);
  // What merged labels promised may not hold for the choice itself.
  double later_s = 0.0;
  least.choice_s = 0.0;
  for (auto stage = least.stages.rbegin(); stage != least.stages.rend(); ++stage) {
    least.choice_s = std::max(least.choice_s, stage->whole_s() + later_s);
    later_s += stage->stable_s;
  }
  return least;
}

}  // namespace

double iteration_time(const std::vector<Point>& stages, int microbatches) {
  std::vector<analyzer::StageTime> times;
  for (const Point& point : stages) times.push_back({point.stable_s, point.delta_s});
  return analyzer::iteration_time(times, microbatches);
}

bool fits_host(const Pipeline& pipeline, const std::vector<Point>& stages) {
  int first = 0;
  double on_node = 0.0;
  for (const Point& point : stages) {
    const Layout& mesh = pipeline.frame.layouts[std::size_t(point.layout)];
    if (first % pipeline.devices_per_node == 0) on_node = 0.0;
    on_node += point.host_bytes * mesh.devices_per_node;
    if (on_node > pipeline.node_host_bytes) return false;
    first += mesh.devices();
  }
  return true;
}

Least least_sum(const Pipeline& pipeline, double threshold_s, double cutoff_s,
                const Prices& prices) {
  return DynamicProgram(pipeline, threshold_s, cutoff_s, prices).solve();
}

}  // namespace brume::tuner
