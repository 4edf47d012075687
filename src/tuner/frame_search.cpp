#include "frame_search.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace brume::tuner {
namespace {

/// Ends of the first intervals, in units of the fastest possible slowest stage.
constexpr double first_ends[] = {1.02, 1.1, 1.3, 2.0, 4.0, infinity};

std::size_t role_of(const Frame& frame, int after) {
  return (after + 1 == frame.num_stages ? 2u : 0u) + (after == 0 ? 1u : 0u);
}

/// Most layers of a stage whose points (one a number of layers) take at most this long.
int most_layers(const std::vector<Point>& points, double threshold_s) {
  for (auto point = points.rbegin(); point != points.rend(); ++point)
    if (point->stable_s <= threshold_s) return point->layers;
  return 0;
}

std::vector<Limits> limits(const hardware::Cluster& cluster) {
  std::vector<Limits> found;
  for (const hardware::NodeGroup& group : cluster.groups)
    found.push_back({double(group.memory_bytes), double(group.host_memory_bytes),
                     double(group.disk_bytes) / group.devices_per_node});
  return found;
}

}  // namespace

FrameSearch::FrameSearch(const Question& question, Grid& grid, const Axes& axes, Frame frame)
    : question_(question),
      frame_(std::move(frame)),
      fronts_(grid, frame_, axes, limits(question.cluster)),
      crossings_(grid, frame_) {
  bound();
}

const std::vector<Point>& FrameSearch::unlimited(int layout, int after) const {
  return unlimited_[std::size_t(layout)][role_of(frame_, after)];
}

Pipeline FrameSearch::empty_pipeline() const {
  Pipeline pipeline{.frame = frame_,
                    .num_layers = question_.model.num_layers,
                    .cluster = question_.cluster,
                    .deadline = question_.deadline,
                    .host_matters = host_matters,
                    .neighbours_matter = question_.cluster.num_groups() > 1,
                    .cells = {},
                    .own = {}};
  pipeline.cells.resize(std::size_t(frame_.num_stages));
  return pipeline;
}

Pipeline FrameSearch::unlimited_pipeline() const {
  Pipeline pipeline = empty_pipeline();
  pipeline.host_matters = pipeline.neighbours_matter = false;
  for (int after = 0; after < frame_.num_stages; ++after)
    for (int layout = 0; layout < int(frame_.layouts.size()); ++layout) {
      question_.deadline.check();
      for (const Point& point : unlimited(layout, after))
        pipeline.cells[std::size_t(after)].push_back({layout, point.layers, std::span(&point, 1)});
    }
  return pipeline;
}

/// The meshes that stages of at most `threshold_s` may take, memory or not.
Rooms FrameSearch::rooms(double threshold_s) const {
  const auto of = [&](int after) {
    std::map<std::pair<int, int>, int> most;  // by group and devices
    for (int layout = 0; layout < int(frame_.layouts.size()); ++layout)
      if (const int layers = most_layers(unlimited(layout, after), threshold_s)) {
        const Layout& mesh = frame_.layouts[std::size_t(layout)];
        int& known = most[{mesh.group, mesh.devices()}];
        known = std::max(known, layers);
      }
    std::vector<Room> meshes;
    for (const auto& [mesh, layers] : most) meshes.push_back({mesh.first, mesh.second, layers});
    return meshes;
  };
  // All stages in between are alike.
  Rooms rooms(std::size_t(frame_.num_stages), of(std::min(1, frame_.num_stages - 1)));
  rooms.front() = of(0);
  rooms.back() = of(frame_.num_stages - 1);
  return rooms;
}

Prices FrameSearch::prices(double threshold_s) const {
  std::vector<int> afters{0};
  if (frame_.num_stages > 1) afters.push_back(frame_.num_stages - 1);
  if (frame_.num_stages > 2) afters.push_back(1);  // and all others between the ends
  std::vector<Alike> stages;
  for (int after : afters) {
    const bool between = after > 0 && after + 1 < frame_.num_stages;
    Alike& alike = stages.emplace_back(Alike{between ? frame_.num_stages - 2 : 1, {}});
    std::map<std::tuple<int, int, int>, double> fastest_s;  // by group, devices, layers
    for (int layout = 0; layout < int(frame_.layouts.size()); ++layout) {
      const Layout& mesh = frame_.layouts[std::size_t(layout)];
      for (const Point& p : unlimited(layout, after))
        if (p.stable_s <= threshold_s) {
          const std::tuple key{mesh.group, mesh.devices(), p.layers};
          const auto known = fastest_s.try_emplace(key, p.stable_s).first;
          known->second = std::min(known->second, p.stable_s);
        }
    }
    for (const auto& [key, stable_s] : fastest_s) {
      const auto [group, devices, layers] = key;
      alike.options.push_back({group, devices, layers, stable_s});
    }
  }
  std::vector<int> devices;
  for (const hardware::NodeGroup& group : question_.cluster.groups)
    devices.push_back(group.devices());
  return best_prices(stages, question_.model.num_layers, devices, question_.deadline);
}

/// The fastest slowest stage that can hold all layers, and what all stages take together.
void FrameSearch::bound() {
  const auto [least, most] = std::ranges::minmax(frame_.layouts, {}, &Layout::devices);
  const int devices = question_.cluster.devices();
  const bool fills = question_.cluster.num_groups() == 1;
  const std::int64_t stages = frame_.num_stages;
  if (stages * least.devices() > devices || (fills && stages * most.devices() < devices)) return;
  unlimited_.assign(frame_.layouts.size(), std::vector<std::vector<Point>>(4));
  std::vector<double> ends;
  double layer_s = infinity, stage_s = infinity;
  for (int layout = 0; layout < int(frame_.layouts.size()); ++layout)
    for (int after : {0, std::min(1, frame_.num_stages - 1), frame_.num_stages - 1}) {
      if (!frame_.allows(frame_.layouts[std::size_t(layout)].group, after)) continue;
      auto& points = unlimited_[std::size_t(layout)][role_of(frame_, after)];
      if (points.empty()) {
        points = fronts_.unlimited(layout, after);
        const double added_s = crossings_.least_s(layout, after);
        for (Point& p : points) p.stable_s += added_s;
      }
      for (const Point& p : points) {
        ends.push_back(p.stable_s);
        layer_s = std::min(layer_s, p.stable_s / p.layers);
        stage_s = std::min(stage_s, p.stable_s);
      }
    }
  std::ranges::sort(ends);
  const auto fastest = std::ranges::partition_point(ends, [&](double threshold_s) {
    return !enough(rooms(threshold_s), question_.model.num_layers, question_.cluster,
                   question_.deadline);
  });
  if (fastest == ends.end()) return;  // devices do not add up
  fastest_stage_s_ = *fastest;
  other_s_ =
      std::max(layer_s * question_.model.num_layers, *fastest + (frame_.num_stages - 1) * stage_s);
  reopen((frame_.microbatches - 1) * *fastest + other_s_);
}

void FrameSearch::reopen(double least_s) {
  least_bound_s_ = std::max(least_bound_s_, least_s);
  open.clear();
  double over_s = 0.0;
  for (double end : first_ends) {
    // The slowest stage counts only beside other microbatches.
    if (frame_.microbatches == 1 || frame_.num_stages == 1) end = infinity;
    const double most_s = end * fastest_stage_s_;
    const double slowest_s = std::max(over_s, fastest_stage_s_);
    open.push_back(
        {.over_s = over_s,
         .most_s = most_s,
         .bound_s = std::max(least_bound_s_, (frame_.microbatches - 1) * slowest_s + other_s_),
         .most_labels = question_.most_labels});
    over_s = most_s;
    if (end == infinity) break;
  }
}

/// Most layers of the other stages; -1 where none of their meshes go with this one.
int FrameSearch::most_of_others(const Capacity& room, int layout, int after) const {
  const Layout& mesh = frame_.layouts[std::size_t(layout)];
  int others = -1;
  for (std::size_t use = 0; use < room.uses().size(); ++use) {
    const int last = room.last(after, use);
    if (last < 0 || room.uses().left(use, mesh.group) < mesh.devices()) continue;
    const int first = room.first(after + 1, room.uses().with(use, mesh.group, mesh.devices()));
    if (first >= 0) others = std::max(others, last + first);
  }
  return others;
}

Pipeline FrameSearch::limited_pipeline(double most_s) {
  Pipeline pipeline = empty_pipeline();
  const Capacity room(rooms(most_s), question_.cluster, question_.deadline);
  for (int after = 0; after < frame_.num_stages; ++after)
    for (int layout = 0; layout < int(frame_.layouts.size()); ++layout) {
      question_.deadline.check();
      const int most_here = most_layers(unlimited(layout, after), most_s);
      if (most_here == 0) continue;
      const int others = most_of_others(room, layout, after);
      const int least_here = std::max(1, pipeline.num_layers - others);
      if (others < 0 || least_here > most_here) continue;
      fronts_.prepare(layout, after, least_here, most_here);
      for (int layers = least_here; layers <= most_here; ++layers) {
        const auto& front = fronts_.front(layout, after, layers);
        if (!front.empty()) crossings_.add_cells(pipeline, layout, after, layers, front);
      }
    }
  return pipeline;
}

}  // namespace brume::tuner
