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

/// Counts of the objective for a stage with `after` stages after it.
struct Counts {
  Counts(const PipelineConfig& config, int after)
      : after(after), trips(tuner::trips(config, after)), fill_share(config.order.fill_share()) {
    if (!config.order.is_1f1b()) return;
    in_flight = int(config.in_flight(after));
    if (after > 0) turns.emplace(config, after);
  }

  int after;
  int trips;  ///< through this stage and those after it
  double fill_share;
  int in_flight = 0;
  std::optional<Turns> turns;  ///< set for 1F1B, if a next stage exists
};

/// Seconds that a stage waits while the first microbatch goes through the later stages and back,
/// and while the last one does.
double idle_s(const PipelineConfig& config, const Counts& counts, const Point& point,
              double round_s) {
  const double rounds_s = counts.in_flight + 1 < config.microbatches
                              ? std::max(round_s, 2.0 * round_s - point.early_send_s)
                              : round_s;
  return std::max(0.0, rounds_s - counts.in_flight * point.stable_s);
}

/// Seconds of the turns of a label's first stage and the next one.
double turns_s(const Counts& counts, const Label& label, const Label& later, double way_s) {
  return counts.turns->count * (label.front_s + way_s + later.front_s) +
         counts.turns->later_flight * label.front_s;
}

/// The objective of pipeline.hpp with one stage more in front of those of a label.
Label in_front(const Pipeline& pipeline, const Counts& counts, const Label& later,
               const Point& point) {
  const PipelineConfig& config = pipeline.config;
  const bool is_last = counts.after == 0;
  const double way_s = is_last ? 0.0 : 2.0 * pipeline.messages.stream_s(point.layout, later.layout);
  const double ways_s = config.order.chunks * way_s;
  const double t = point.stable_s;
  Label label{.trip_s = point.shortest_s() + ways_s + later.trip_s,
              .front_s = point.shortest_s(),
              .least_s = 0.0,
              .standalone_s = std::max(later.standalone_s,
                                       (config.microbatches - 1) * t + point.standalone_s()),
              .layout = point.layout,
              .point = &point};
  const double round_s = ways_s + later.trip_s, own_s = config.microbatches * t + point.delta_s;
  const double trips_s = (counts.trips - 1) * label.trip_s + point.fill_s() + round_s;
  label.least_s = std::max(
      trips_s, own_s + (config.order.is_1f1b() ? idle_s(config, counts, point, round_s) : 0.0));
  if (!is_last)
    label.least_s = std::max({label.least_s,
                              config.order.is_1f1b() ? turns_s(counts, label, later, way_s)
                                                     : config.microbatches * ways_s / 2.0,
                              counts.fill_share * point.fill_s() + way_s + later.least_s});
  if (is_last && config.num_stages > 1)
    label.standalone_s =
        std::max(label.standalone_s,
                 (config.microbatches - 1) * t + pipeline.messages.tied_gradient_s(point.layout));
  return label;
}

class DynamicProgram {
 public:
  DynamicProgram(const Pipeline& pipeline, const std::vector<double>& thresholds_s, double cutoff_s,
                 const Prices& prices, std::size_t most_labels)
      : pipeline_(pipeline),
        num_groups_(pipeline.cluster.num_groups()),
        cutoff_s_(cutoff_s),
        prices_(prices),
        most_labels_(most_labels) {
    for (std::size_t after = 0; after < pipeline.cells.size(); ++after) {
      counts_.emplace_back(pipeline.config, int(after));
      meshes_.push_back(meshes(pipeline.cells[after], thresholds_s[after]));
    }
    capacity_.emplace(capacities(), pipeline.cluster, pipeline.deadline);
    bound_rest();
  }

  Assignments solve();

 private:
  using Meshes = std::vector<Mesh>;

  const hardware::NodeGroup& group(int index) const { return pipeline_.cluster.groups[index]; }

  Meshes meshes(const std::vector<Cell>& cells, double threshold_s) const;
  bool no_better(const Point& point, const Point& other, bool shares_host) const;
  StageCapacities capacities() const;
  void bound_rest();
  double rest_s(std::size_t placed, std::size_t use, int layers) const;
  bool add_host(Label& label, const Label& later, std::size_t from, std::size_t use,
                const Mesh& mesh) const;
  void extend(int after, const States::State& from, States& next);
  void extend(int after, const States::State& from, const Mesh& mesh, const Arc& arc, States& next);
  void insert(std::vector<Entry>& labels, const Label& label);
  /// Whether a label whose times are no longer is at least as good in all else.
  bool no_worse(const Label& a, const Label& b) const {
    if (!pipeline_.messages.no_slower(a.layout, b.layout)) return false;
    for (int g = 0; pipeline_.host_matters && g < num_groups_; ++g)
      if (a.host_bytes[g] > b.host_bytes[g]) return false;
    return true;
  }

  const Pipeline& pipeline_;
  int num_groups_;
  double cutoff_s_;
  Prices prices_;
  std::size_t most_labels_;
  bool merged_ = false;
  std::vector<Counts> counts_;  ///< [stages after]
  std::vector<Meshes> meshes_;  ///< [stages after]
  std::optional<Capacity> capacity_;
  std::vector<double> rest_s_;  ///< [stages placed] least sum of the other stages' whole times
  std::vector<double> rest_layer_s_;   ///< the same a layer
  std::vector<double> rest_priced_s_;  ///< the same at the prices
  std::vector<Label> labels_;
};

/// Whether another point of as many layers on as many devices is at least as good.
bool DynamicProgram::no_better(const Point& point, const Point& other, bool shares_host) const {
  return other.stable_s <= point.stable_s && other.fill_s() <= point.fill_s() &&
         other.shortest_s() <= point.shortest_s() && other.standalone_s() <= point.standalone_s() &&
         (!shares_host || other.host_bytes <= point.host_bytes) &&
         pipeline_.messages.no_slower(other.layout, point.layout) &&
         pipeline_.messages.tied_gradient_s(other.layout) <=
             pipeline_.messages.tied_gradient_s(point.layout);
}

DynamicProgram::Meshes DynamicProgram::meshes(const std::vector<Cell>& cells,
                                              double threshold_s) const {
  std::map<std::tuple<int, int, int>, std::vector<const Point*>> all;  // by group, devices, layers
  for (const Cell& cell : cells) {
    pipeline_.deadline.check();
    const Layout& layout = pipeline_.layout(cell);
    auto& points = all[{layout.group, layout.devices(), cell.layers}];
    for (const Point& point : cell.points)
      if (point.stable_s <= threshold_s) points.push_back(&point);
  }
  Meshes found;
  for (auto& [key, points] : all) {
    std::ranges::stable_sort(points, {}, [](const Point* p) {
      return std::pair{p->stable_s, p->fill_s()};
    });
    const auto [of, devices, layers] = key;
    const bool shares_host = pipeline_.host_matters && devices < group(of).devices_per_node;
    Arc arc{layers, {}};
    for (const Point* p : points)
      if (std::ranges::none_of(arc.points,
                               [&](const Point* q) { return no_better(*p, *q, shares_host); }))
        arc.points.push_back(p);
    if (arc.points.empty()) continue;
    if (found.empty() || found.back().group != of || found.back().devices != devices)
      found.push_back({of, devices, {}});
    found.back().arcs.push_back(std::move(arc));
  }
  return found;
}

StageCapacities DynamicProgram::capacities() const {
  StageCapacities capacities;
  for (const Meshes& meshes : meshes_) {
    std::map<std::pair<int, int>, int> most;  // layers, by group and devices
    for (const Mesh& mesh : meshes) {
      int& layers = most[{mesh.group, mesh.devices}];
      layers = std::max(layers, mesh.arcs.back().layers);
    }
    capacities.emplace_back();
    for (const auto& [mesh, layers] : most)
      capacities.back().push_back({mesh.first, mesh.second, layers});
  }
  return capacities;
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
        double fill_s = infinity;
        for (const Point* point : arc.points) fill_s = std::min(fill_s, point->fill_s());
        least_s = std::min(least_s, fill_s);
        layer_s = std::min(layer_s, fill_s / arc.layers);
        priced_s = std::min(priced_s, fill_s + prices_.device_s[mesh.group] * mesh.devices -
                                          prices_.layer_s * arc.layers);
      }
    rest_s_[after] = rest_s_[after + 1] + least_s;
    rest_layer_s_[after] = layer_s;
    rest_priced_s_[after] = rest_priced_s_[after + 1] + priced_s;
  }
}

/// Least sum of whole times and messages of what is left, on the devices and for the layers that
/// are left.
double DynamicProgram::rest_s(std::size_t placed, std::size_t use, int layers) const {
  double priced_s = rest_priced_s_[placed] + prices_.layer_s * layers;
  for (int g = 0; g < num_groups_; ++g)
    priced_s -= prices_.device_s[g] * capacity_->usage().left(use, g);
  const int messages = pipeline_.config.num_stages - int(placed);
  return 2.0 * messages * pipeline_.messages.least_stream_s() +
         pipeline_.config.order.fill_share() *
             std::max({rest_s_[placed], layers == 0 ? 0.0 : layers * rest_layer_s_[placed],
                       priced_s * (1.0 - bound_rounding)});
}

/// Counts host bytes on the node that a stage's mesh shares. @return whether they fit
bool DynamicProgram::add_host(Label& label, const Label& later, std::size_t from, std::size_t use,
                              const Mesh& mesh) const {
  label.host_bytes = later.host_bytes;
  const hardware::NodeGroup& of = group(mesh.group);
  if (mesh.devices > of.devices_per_node) return true;
  const auto within_node = [&](std::size_t at) {
    return capacity_->usage().left(at, mesh.group) % of.devices_per_node != 0;
  };
  double& bytes = label.host_bytes[mesh.group];
  bytes = mesh.devices * label.point->host_bytes + (within_node(from) ? bytes : 0.0);
  if (bytes > double(of.host_memory_bytes)) return false;
  if (!within_node(use)) bytes = 0.0;  // nobody shares it any more
  return true;
}

/// Whether none of the times is longer than the other label's. Without branches: which of them is
/// longer follows no pattern.
bool no_longer(const Label::Times& a, const Label::Times& b) {
  std::size_t no_longer = 0;
  for (std::size_t i = 0; i < a.size(); ++i) no_longer += a[i] <= b[i];
  return no_longer == a.size();
}

void DynamicProgram::insert(std::vector<Entry>& labels, const Label& label) {
  const Label::Times times_s = label.times_s();
  const auto known = [&](const Entry& entry) -> Label& { return labels_[entry.label]; };
  for (std::size_t i = 0; i < labels.size(); ++i)
    if (no_longer(labels[i].times_s, times_s) && no_worse(known(labels[i]), label)) {
      std::swap(labels[i], labels[i / 2]);  // what beats one label beats others soon
      return;
    }
  std::erase_if(labels, [&](const Entry& other) {
    return no_longer(times_s, other.times_s) && no_worse(label, known(other));
  });
  const auto id = int(labels_.size());
  if (labels.size() < most_labels_) {
    labels.push_back({times_s, id});
    labels_.push_back(label);
    return;
  }
  // One that is at least as good as both keeps the bound a bound.
  merged_ = true;
  Label merged = known(labels.back());
  if (merged.layout != label.layout) merged.layout = -1;
  merged.trip_s = std::min(merged.trip_s, label.trip_s);
  merged.front_s = std::min(merged.front_s, label.front_s);
  merged.least_s = std::min(merged.least_s, label.least_s);
  merged.standalone_s = std::min(merged.standalone_s, label.standalone_s);
  for (std::size_t g = 0; g < merged.host_bytes.size(); ++g)
    merged.host_bytes[g] = std::min(merged.host_bytes[g], label.host_bytes[g]);
  labels.back() = {merged.times_s(), id};
  labels_.push_back(merged);
}

void DynamicProgram::extend(int after, const States::State& from, States& next) {
  pipeline_.deadline.check();
  const int placed = after + 1, others = pipeline_.num_layers - from.layers;
  const bool is_first = placed == pipeline_.config.num_stages;
  const DeviceUsage& usage = capacity_->usage();
  for (const Mesh& mesh : meshes_[after]) {
    if (!usage.takes(from.use, mesh.group, mesh.devices)) continue;
    const int others_hold =
        capacity_->first(placed, usage.with(from.use, mesh.group, mesh.devices));
    if (others_hold < 0) continue;
    for (auto arc = std::ranges::lower_bound(mesh.arcs, others - others_hold, {}, &Arc::layers);
         arc != mesh.arcs.end() && arc->layers <= others; ++arc)
      if (is_first == (arc->layers == others)) extend(after, from, mesh, *arc, next);
  }
}

void DynamicProgram::extend(int after, const States::State& from, const Mesh& mesh, const Arc& arc,
                            States& next) {
  const std::size_t use = capacity_->usage().with(from.use, mesh.group, mesh.devices);
  const double rest_s =
      this->rest_s(std::size_t(after) + 1, use, pipeline_.num_layers - from.layers - arc.layers);
  const Counts& counts = counts_[after];
  std::vector<Entry>* labels = nullptr;
  for (const auto& [times_s, id] : from.labels)
    for (const Point* point : arc.points) {
      Label label = in_front(pipeline_, counts, labels_[id], *point);
      label.next = id;
      if (std::max(label.least_s + rest_s, label.standalone_s) >= cutoff_s_) continue;
      if (pipeline_.host_matters && !add_host(label, labels_[id], from.use, use, mesh)) continue;
      if (!labels) labels = &next.labels(use, from.layers + arc.layers);
      insert(*labels, label);
    }
}

Assignments DynamicProgram::solve() {
  Assignments found{.bound_s = cutoff_s_, .best = {}};
  if (capacity_->first(0, 0) < pipeline_.num_layers) return {};
  States next(capacity_->usage().size(), pipeline_.num_layers);
  labels_.emplace_back();
  next.labels(0, 0) = {{{}, 0}};
  for (int after = 0; after < pipeline_.config.num_stages; ++after)
    for (const States::State& state : next.take()) extend(after, state, next);
  for (const States::State& state : next.take())
    for (auto [times_s, id] : state.labels) {
      Assignment& assignment = found.best.emplace_back();
      assignment.least_s = labels_[id].bound_s();
      for (; labels_[id].point; id = labels_[id].next)
        assignment.stages.push_back(*labels_[id].point);
    }
  std::ranges::stable_sort(found.best, {}, &Assignment::least_s);
  if (!found.best.empty()) found.bound_s = found.best[0].least_s;
  found.merged = merged_;
  return found;
}

}  // namespace

Turns::Turns(const PipelineConfig& config, int after)
    : later_flight(int(config.in_flight(after - 1))),
      count((config.microbatches - 1 - later_flight) /
                (int(config.in_flight(after)) - later_flight + 1) +
            1) {}

int trips(const PipelineConfig& config, int after) {
  if (!config.order.is_1f1b()) return 1;
  return (config.microbatches - 1) / (int(config.in_flight(after)) + 1) + 1;
}

double least_s(const Pipeline& pipeline, const std::vector<Point>& stages) {
  Label label;
  for (int after = 0; after < int(stages.size()); ++after)
    label = in_front(pipeline, Counts(pipeline.config, after), label,
                     stages[stages.size() - 1 - std::size_t(after)]);
  return label.bound_s();
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

Assignments best_assignments(const Pipeline& pipeline, const std::vector<double>& thresholds_s,
                             double cutoff_s, const Prices& prices, std::size_t most_labels) {
  return DynamicProgram(pipeline, thresholds_s, cutoff_s, prices, most_labels).solve();
}

}  // namespace brume::tuner
