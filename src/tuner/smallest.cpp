#include "smallest.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "analyzer/analyzer.hpp"
#include "grid.hpp"
#include "pipeline.hpp"
#include "plan/shapes.hpp"
#include "question.hpp"
#include "rows.hpp"

namespace brume::tuner {
namespace {

/// Each ratio at each ZeRO level, with no and with all layers recomputed: a whole block next to its
/// shard may need more memory than the shard saves.
std::vector<Point> extremes(const Seat& seat, int layers, const Axes& axes) {
  std::vector<int> levels{0};
  if (axes.recompute) levels.push_back(layers);
  std::vector<Point> found;
  for (const Strategy& row : axes.rows(seat.mesh(), layers))
    if (row.sharding.replicas == 1)
      for (const int level : levels) found.emplace_back(seat.layout, row.at_level(level));
  return found;
}

/// Which strategies need least memory, of all frames of 1F1B.
class Leanest {
 public:
  Leanest(const Question& question, Grid& grid)
      : question_(question), grid_(grid), axes_(question.keys), in_memory_(axes_.in_memory()) {}

  /// The frames of few stages and small microbatches come first. To run ahead takes memory only.
  std::vector<Frame> frames() const {
    std::vector<Frame> all = tuner::frames(question_);
    if (plan::allows(question_.keys.run_ahead, 1))
      std::erase_if(all, [](const Frame& frame) { return frame.run_ahead > 1; });
    std::ranges::stable_sort(all, {}, [](const Frame& frame) {
      return std::pair{frame.num_stages, -frame.microbatches};
    });
    return all;
  }

  /// A choice whose devices each need at most this share of what their group has; none: {}.
  ///
  /// @param exactly  false: also where a node's host memory may not do for all of its stages
  std::vector<Point> choice(const Frame& frame, double share, bool exactly) {
    const MessageTable no_messages;
    Pipeline pipeline{.frame = frame,
                      .messages = no_messages,
                      .num_layers = question_.model.num_layers,
                      .cluster = question_.cluster,
                      .deadline = question_.deadline,
                      .host_matters = true,
                      .cells = {}};
    std::vector<std::vector<Point>> points;  // [stages after x layout]
    const int most = frame.most_layers(pipeline.num_layers);
    for (int after = 0; after < frame.num_stages; ++after)
      for (int layout = 0; layout < int(frame.layouts.size()); ++layout)
        points.push_back(
            within({frame, layout, after}, frame.num_stages == 1 ? most : 1, most, share));
    for (int after = 0; after < frame.num_stages; ++after) {
      auto& cells = pipeline.cells.emplace_back();
      for (std::size_t layout = 0; layout < frame.layouts.size(); ++layout)
        for (const Point& p : points[std::size_t(after) * frame.layouts.size() + layout])
          cells.push_back({int(layout), p.layers(), std::span(&p, 1)});
    }
    std::vector<Choice> found = best_choices(pipeline, std::vector(pipeline.cells.size(), infinity),
                                             infinity, {}, question_.most_labels)
                                    .best;
    if (found.empty()) return {};
    // Choices of merged labels may need more host memory than they counted.
    const auto fitting =
        std::ranges::find_if(found, [&](const Choice& c) { return fits_host(pipeline, c.stages); });
    if (fitting != found.end()) return std::move(fitting->stages);
    return exactly ? std::vector<Point>{} : std::move(found[0].stages);
  }

  /// All shares that a device of a frame may need.
  std::vector<double> shares(const Frame& frame) {
    std::vector<double> all;
    const int most = frame.most_layers(question_.model.num_layers);
    for (int after = 0; after < frame.num_stages; ++after)
      for (int layout = 0; layout < int(frame.layouts.size()); ++layout)
        for (int layers = frame.num_stages == 1 ? most : 1; layers <= most; ++layers)
          for (const Point& p : front({frame, layout, after}, layers))
            all.push_back(p.device_bytes / memory_bytes({frame, layout, after}));
    std::ranges::sort(all);
    return all;
  }

 private:
  /// Role, layout, kept, run-ahead, layers.
  using Key = std::tuple<analyzer::StageRole, Layout, Kept, int, int>;

  double memory_bytes(const Seat& seat) const {
    return double(question_.cluster.groups[std::size_t(seat.mesh().group)].memory_bytes);
  }

  /// For each number of layers the strategy that needs least host memory within a share.
  std::vector<Point> within(const Seat& seat, int least_layers, int most_layers, double share) {
    std::vector<Point> found;
    for (int layers = least_layers; layers <= most_layers; ++layers) {
      const std::vector<Point>& points = front(seat, layers);
      const auto end = std::ranges::find_if(
          points, [&](const Point& p) { return p.device_bytes / memory_bytes(seat) > share; });
      if (end == points.begin()) break;  // nor do more layers fit
      found.push_back(*std::prev(end));
      found.back().layout = seat.layout;
    }
    return found;
  }

  /// Strategies by rising device and falling host memory.
  const std::vector<Point>& front(const Seat& seat, int layers) {
    const Key key{seat.role(), seat.mesh(), seat.frame.kept(seat.after), seat.frame.run_ahead,
                  layers};
    const auto [entry, fresh] = known_.try_emplace(key);
    if (!fresh) return entry->second;
    question_.deadline.check();
    const Limits limits = question_.rows->limits(seat.mesh().group);
    std::vector<Point> points = extremes(seat, layers, seat.mesh().disk ? axes_ : in_memory_);
    grid_.price_memory(seat, points);
    std::erase_if(points, [&](const Point& p) {
      return limits.lack_host(p, seat.mesh()) || p.disk_bytes > limits.rank_disk_bytes;
    });
    std::ranges::sort(points, {}, [](const Point& p) {
      return std::tuple{p.device_bytes, p.host_bytes};
    });
    for (const Point& p : points)
      if (entry->second.empty() || p.host_bytes < entry->second.back().host_bytes)
        entry->second.push_back(p);
    return entry->second;
  }

  const Question& question_;
  Grid& grid_;
  Axes axes_, in_memory_;
  std::map<Key, std::vector<Point>> known_;
};

}  // namespace

bool may_fit(const Question& question, Grid& grid) try {
  Leanest leanest(question, grid);
  const std::vector<Frame> frames = leanest.frames();
  return frames.empty() || std::ranges::any_of(frames, [&](const Frame& frame) {
           return !leanest.choice(frame, 1.0, false).empty();
         });
} catch (const OutOfTime&) {
  return true;
}

std::optional<plan::Plan> smallest_plan(const Question& question, Grid& grid) {
  Leanest leanest(question, grid);
  std::optional<plan::Plan> smallest;
  double least = infinity;
  for (const Frame& frame : leanest.frames()) {
    constexpr double worth_knowing = 0.999;
    const auto choice = [&](double share) { return leanest.choice(frame, share, true); };
    if (choice(least * worth_knowing).empty()) continue;
    const std::vector<double> shares = leanest.shares(frame);
    const auto enough =
        std::ranges::partition_point(shares, [&](double s) { return choice(s).empty(); });
    least = *enough;
    smallest = plan_of(question, frame, choice(least));
  }
  return smallest;
}

}  // namespace brume::tuner
