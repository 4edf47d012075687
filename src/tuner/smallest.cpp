/// @file The plan that needs least memory, to say what would fit where nothing does.
#include <algorithm>

#include "search.hpp"

namespace brume::tuner {
namespace {

constexpr std::size_t frames_looked_at = 4;

/// Ends of all ratios in all combinations, with no and with all layers recomputed. A whole block
/// beside its shard may need more than is saved, so all ZeRO levels are looked at.
std::vector<Point> corners(int layout, int layers, const Axes& axes) {
  std::vector<Point> rows{{.layout = layout, .layers = layers, .stores_rest = axes.store_rest}};
  const auto both = [&](auto set, auto low, auto high) {
    std::vector<Point> all;
    for (const Point& row : rows) {
      set(all.emplace_back(row), low);
      if (high != low) set(all.emplace_back(row), high);
    }
    rows = std::move(all);
  };
  for (std::size_t i = 0; i < axes.ratios.size(); ++i)
    both([i](Point& p, double r) { p.ratios[i] = r; }, axes.ratios[i].front(),
         axes.ratios[i].back());
  std::erase_if(rows, [](const Point& p) { return !p.parts_fit(); });
  std::vector<Point> levels;
  for (int zero_level : axes.zero_levels)
    for (Point row : rows) {
      row.zero_level = zero_level;
      levels.push_back(row);
    }
  rows = std::move(levels);
  both([](Point& p, int level) { p.set_level(level); }, 0, axes.recompute ? layers : 0);
  return rows;
}

/// For each number of layers the strategy that needs least device memory within the host's. Bytes
/// stand in the place of seconds, so that the dynamic program minimises them; of another group than
/// the first as many as fill as much of a device.
std::vector<Point> leanest(const Question& question, Grid& grid, const Axes& axes, const Seat& seat,
                           int least_layers, int most_layers) {
  std::vector<Point> found;
  const hardware::NodeGroup& group = question.cluster.groups[std::size_t(seat.mesh().group)];
  const double scale = double(question.cluster.groups[0].memory_bytes) / double(group.memory_bytes);
  for (int layers = least_layers; layers <= most_layers; ++layers) {
    std::vector<Point> rows =
        corners(seat.layout, layers, seat.mesh().disk ? axes : axes.in_memory());
    grid.price_memory(seat, rows);
    std::erase_if(rows, [&](const Point& p) {
      return p.host_bytes * seat.mesh().devices_per_node > double(group.host_memory_bytes) ||
             p.disk_bytes * group.devices_per_node > double(group.disk_bytes);
    });
    if (rows.empty()) continue;
    Point& least = *std::ranges::min_element(rows, {}, &Point::device_bytes);
    least.stable_s = least.device_bytes * scale;
    least.delta_s = 0.0;
    found.push_back(least);
  }
  return found;
}

struct Lean {
  Frame frame;
  double guess_bytes;  ///< of its fullest stage, were layers spread evenly
};

std::vector<Lean> leanest_frames(const Question& question, Grid& grid, const Axes& axes) {
  std::vector<Lean> all;
  for (const Frame& frame : frames(question)) {
    const int layers = (question.model.num_layers + frame.num_stages - 1) / frame.num_stages;
    double fullest = 0.0;
    for (int after : {0, frame.num_stages - 1}) {
      double least = infinity;
      for (int layout = 0; layout < int(frame.layouts.size()); ++layout)
        for (const Point& p : leanest(question, grid, axes, {frame, layout, after}, layers, layers))
          least = std::min(least, p.stable_s);
      fullest = std::max(fullest, least);
    }
    if (fullest < infinity) all.push_back({frame, fullest});
  }
  std::ranges::stable_sort(all, {}, &Lean::guess_bytes);
  return all;
}

/// The choice of a frame whose fullest device needs least.
std::vector<Point> emptiest(const Question& question, Grid& grid, const Axes& axes,
                            const Frame& frame) {
  const MessageTable no_messages;
  Pipeline pipeline{.frame = frame,
                    .messages = no_messages,
                    .num_layers = question.model.num_layers,
                    .cluster = question.cluster,
                    .deadline = question.deadline,
                    .host_matters = true,
                    .cells = {}};
  std::vector<double> sizes;
  std::vector<std::vector<Point>> points;  // [stages after x layout]
  const int most = pipeline.num_layers - frame.num_stages + 1;
  for (int after = 0; after < frame.num_stages; ++after)
    for (int layout = 0; layout < int(frame.layouts.size()); ++layout)
      points.push_back(leanest(question, grid, axes, {frame, layout, after},
                               frame.num_stages == 1 ? most : 1, most));
  for (int after = 0; after < frame.num_stages; ++after) {
    auto& cells = pipeline.cells.emplace_back();
    for (std::size_t layout = 0; layout < frame.layouts.size(); ++layout)
      for (const Point& p : points[std::size_t(after) * frame.layouts.size() + layout]) {
        cells.push_back({int(layout), p.layers, std::span(&p, 1)});
        sizes.push_back(p.stable_s);
      }
  }
  std::ranges::sort(sizes);
  const auto choice = [&](double bytes) {
    std::vector<Choice> found = best_choices(pipeline, std::vector(pipeline.cells.size(), bytes),
                                             infinity, {}, question.most_labels)
                                    .best;
    // Choices of merged labels may need more host memory than they counted.
    const auto fitting =
        std::ranges::find_if(found, [&](const Choice& c) { return fits_host(pipeline, c.stages); });
    return fitting == found.end() ? std::vector<Point>{} : std::move(fitting->stages);
  };
  const auto least =
      std::ranges::partition_point(sizes, [&](double bytes) { return choice(bytes).empty(); });
  return least == sizes.end() ? std::vector<Point>{} : choice(*least);
}

}  // namespace

std::optional<plan::Plan> smallest_plan(const Question& question, Grid& grid) {
  const Axes axes(question.keys);
  std::optional<plan::Plan> smallest;
  double least_bytes = infinity;
  std::size_t looked_at = 0;
  for (const Lean& lean : leanest_frames(question, grid, axes)) {
    if (looked_at == frames_looked_at) break;
    std::vector<Point> stages;
    try {
      stages = emptiest(question, grid, axes, lean.frame);
    } catch (const OutOfTime&) {
      if (!smallest) throw;
      break;
    }
    if (stages.empty()) continue;
    ++looked_at;
    const double bytes = std::ranges::max_element(stages, {}, &Point::stable_s)->stable_s;
    if (bytes >= least_bytes) continue;
    least_bytes = bytes;
    smallest = plan_of(question, lean.frame, stages);
  }
  return smallest;
}

}  // namespace brume::tuner
