#include "minimal_memory.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "analyzer/analyzer.hpp"
#include "base/text.hpp"
#include "grid.hpp"
#include "pipeline.hpp"
#include "plan/shapes.hpp"
#include "rows.hpp"
#include "search_input.hpp"

namespace brume::tuner {
namespace {

/// Each ratio at each ZeRO level, with no and with all layers recomputed: a whole block next to its
/// shard may need more memory than the shard saves.
std::vector<Point> extremes(const StagePosition& position, int layers, const Axes& axes) {
  std::vector<int> levels{0};
  if (axes.recompute) levels.push_back(layers);
  std::vector<Point> found;
  for (const Strategy& row : axes.rows(position.mesh(), layers))
    if (row.sharding.replicas == 1)
      for (const int level : levels) found.emplace_back(position.layout, row.at_level(level));
  return found;
}

/// Finds the strategies that need least memory, of all configurations of 1F1B.
class MinimalMemory {
 public:
  MinimalMemory(const SearchInput& input, Grid& grid)
      : input_(input), grid_(grid), axes_(input.keys), in_memory_(axes_.in_memory()) {}

  /// The configurations of few stages and small microbatches come first. To run ahead takes memory
  /// only.
  std::vector<PipelineConfig> configs() const {
    std::vector<PipelineConfig> all = tuner::configs(input_);
    if (plan::allows(input_.keys.run_ahead, 1))
      std::erase_if(all, [](const PipelineConfig& config) { return config.order.run_ahead > 1; });
    std::ranges::stable_sort(all, {}, [](const PipelineConfig& config) {
      return std::pair{config.num_stages, -config.microbatches};
    });
    return all;
  }

  /// An assignment whose devices each need at most this share of what their group has; none: {}.
  ///
  /// @param exactly  false: also where a node's host memory may not do for all of its stages
  /// @param layers   least and most layers of a stage
  std::vector<Point> assignment(const PipelineConfig& config, double share, bool exactly,
                                std::optional<std::pair<int, int>> layers = {}) {
    const MessageTable no_messages;
    Pipeline pipeline{.config = config,
                      .messages = no_messages,
                      .num_layers = input_.model.num_layers,
                      .cluster = input_.cluster,
                      .deadline = input_.deadline,
                      .host_matters = true,
                      .cells = {}};
    std::vector<std::vector<Point>> points;  // [stages after x layout]
    const auto [least, most] = layers.value_or(all_layers(config));
    for (int after = 0; after < config.num_stages; ++after)
      for (int layout = 0; layout < int(config.layouts.size()); ++layout)
        points.push_back(within({config, layout, after}, least, most, share));
    for (int after = 0; after < config.num_stages; ++after) {
      auto& cells = pipeline.cells.emplace_back();
      for (std::size_t layout = 0; layout < config.layouts.size(); ++layout)
        for (const Point& p : points[std::size_t(after) * config.layouts.size() + layout])
          cells.push_back({int(layout), p.layers(), std::span(&p, 1)});
    }
    std::vector<Assignment> found =
        best_assignments(pipeline, std::vector(pipeline.cells.size(), infinity), infinity, {},
                         input_.most_labels)
            .best;
    if (found.empty()) return {};
    // Assignments of merged labels may need more host memory than they counted.
    const auto fitting = std::ranges::find_if(
        found, [&](const Assignment& c) { return fits_host(pipeline, c.stages); });
    if (fitting != found.end()) return std::move(fitting->stages);
    return exactly ? std::vector<Point>{} : std::move(found[0].stages);
  }

  /// Whether an assignment fits.
  /// @param evenly  of stages with equally many layers, or one more
  bool fits(const PipelineConfig& config, bool evenly) {
    const int layers = input_.model.num_layers, stages = config.num_stages;
    std::optional<std::pair<int, int>> even;
    if (evenly) even = {std::max(1, layers / stages), int(ceil_div(layers, stages))};
    return !assignment(config, 1.0, false, even).empty();
  }

  /// All shares that a device of a configuration may need.
  std::vector<double> shares(const PipelineConfig& config) {
    std::vector<double> all;
    const auto [least, most] = all_layers(config);
    for (int after = 0; after < config.num_stages; ++after)
      for (int layout = 0; layout < int(config.layouts.size()); ++layout)
        for (int layers = least; layers <= most; ++layers)
          for (const Point& p : front({config, layout, after}, layers))
            all.push_back(p.device_bytes / memory_bytes({config, layout, after}));
    std::ranges::sort(all);
    return all;
  }

 private:
  /// Role, layout, memory, run-ahead, layers.
  using Key = std::tuple<analyzer::StageRole, Layout, MemoryKey, int, int>;

  /// Least and most layers of a stage.
  std::pair<int, int> all_layers(const PipelineConfig& config) const {
    const int most = config.most_layers(input_.model.num_layers);
    return {config.num_stages == 1 ? most : 1, most};
  }
  double memory_bytes(const StagePosition& position) const {
    return double(input_.cluster.groups[position.mesh().group].memory_bytes);
  }

  /// The strategy of each number of layers that needs least host memory within a share.
  std::vector<Point> within(const StagePosition& position, int least_layers, int most_layers,
                            double share) {
    std::vector<Point> found;
    for (int layers = least_layers; layers <= most_layers; ++layers) {
      const std::vector<Point>& points = front(position, layers);
      const auto end = std::ranges::find_if(
          points, [&](const Point& p) { return p.device_bytes / memory_bytes(position) > share; });
      if (end == points.begin()) break;  // nor do more layers fit
      found.push_back(*std::prev(end));
      found.back().layout = position.layout;
    }
    return found;
  }

  /// Strategies by rising device and falling host memory.
  const std::vector<Point>& front(const StagePosition& position, int layers) {
    const Key key{position.role(), position.mesh(), position.config.memory_key(position.after),
                  position.config.order.run_ahead, layers};
    const auto [entry, fresh] = known_.try_emplace(key);
    if (!fresh) return entry->second;
    input_.deadline.check();
    const Limits limits = input_.rows->limits(position.mesh().group);
    std::vector<Point> points =
        extremes(position, layers, position.mesh().disk ? axes_ : in_memory_);
    grid_.price_memory(position, points);
    std::erase_if(points, [&](const Point& p) {
      return limits.lack_host(p, position.mesh()) || p.disk_bytes > limits.rank_disk_bytes;
    });
    std::ranges::sort(points, {}, [](const Point& p) {
      return std::tuple{p.device_bytes, p.host_bytes};
    });
    for (const Point& p : points)
      if (entry->second.empty() || p.host_bytes < entry->second.back().host_bytes)
        entry->second.push_back(p);
    return entry->second;
  }

  const SearchInput& input_;
  Grid& grid_;
  Axes axes_, in_memory_;
  std::map<Key, std::vector<Point>> known_;
};

}  // namespace

bool may_fit(const SearchInput& input, Grid& grid) try {
  MinimalMemory minimal(input, grid);
  const std::vector<PipelineConfig> configs = minimal.configs();
  // Even stages are few, and fit where others do, mostly.
  const auto any_fits = [&](bool evenly) {
    return std::ranges::any_of(
        configs, [&](const PipelineConfig& config) { return minimal.fits(config, evenly); });
  };
  return configs.empty() || any_fits(true) || any_fits(false);
} catch (const OutOfTime&) {
  return true;
}

std::optional<plan::Plan> minimal_memory_plan(const SearchInput& input, Grid& grid) {
  MinimalMemory minimal(input, grid);
  std::optional<plan::Plan> smallest;
  double least = infinity;
  for (const PipelineConfig& config : minimal.configs()) {
    constexpr double worth_knowing = 0.999;
    const auto assignment = [&](double share) { return minimal.assignment(config, share, true); };
    if (assignment(least * worth_knowing).empty()) continue;
    const std::vector<double> shares = minimal.shares(config);
    const auto enough =
        std::ranges::partition_point(shares, [&](double s) { return assignment(s).empty(); });
    least = *enough;
    smallest = plan_of(input, config, assignment(least));
  }
  return smallest;
}

}  // namespace brume::tuner
