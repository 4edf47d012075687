#include "times.hpp"

#include <algorithm>

#include "analyzer/analyzer.hpp"
#include "grid.hpp"

namespace brume::tuner {

void Times::price(Grid& grid, const StagePosition& position, std::span<Point> points) {
  const std::lock_guard lock(mutex_);
  const auto known = known_.of(points, &Point::strategy, [&](std::vector<Point>& missing) {
    grid.price_time(position, missing);
    return std::vector<StageTimes>(missing.begin(), missing.end());
  });
  for (std::size_t i = 0; i < points.size(); ++i) points[i].times() = *known[i];
}

std::vector<StageTimes> RowTimes::least(Grid& grid, const StagePosition& position,
                                        std::span<const Strategy> rows) {
  const auto price = [&](const std::vector<Strategy>& missing) {
    PointGroups levels;
    for (const Strategy& row : missing) {
      levels.begin_group();
      for (const int level : axes_.turning_levels(row.layers))
        levels.add({position.layout, row.at_level(level)});
    }
    grid.price_time(position, levels.all());
    std::vector<StageTimes> found;
    for (std::size_t i = 0; i < missing.size(); ++i) {
      StageTimes& least = found.emplace_back(levels[i][0]);
      for (const Point& point : levels[i]) least.take_less_of(point);
    }
    return found;
  };
  const std::lock_guard lock(mutex_);
  std::vector<StageTimes> found;
  for (const StageTimes* times : least_.of(rows, &Strategy::row, price)) found.push_back(*times);
  return found;
}

/// A row with the numbers of layers that tell of all others: from the fourth layer on each one adds
/// as much as the one before.
const std::vector<StageTimes>& RowTimes::samples(Grid& grid, const StagePosition& position,
                                                 Strategy row) {
  constexpr int different = 4;
  row.layers = 0;
  const Strategy key = row.row();
  if (const auto known = samples_.find(key); known != samples_.end()) return known->second;
  const analyzer::StageRole role = position.role();
  const int most = grid.model().num_layers, least = role.first && role.last ? most : 1;
  std::vector<Point> points;
  for (row.layers = least; row.layers <= most;
       row.layers = row.layers < different ? row.layers + 1 : std::max(most, row.layers + 1))
    for (const int level : axes_.turning_levels(row.layers))
      points.emplace_back(position.layout, row.at_level(level));
  grid.price_time(position, points);
  return samples_.emplace(key, std::vector<StageTimes>(points.begin(), points.end())).first->second;
}

bool RowTimes::gains(Grid& grid, const StagePosition& position, const Step& step) {
  const std::lock_guard lock(mutex_);
  const std::vector<StageTimes>& from = samples(grid, position, step.from);
  const std::vector<StageTimes>& to = samples(grid, position, step.to);
  for (std::size_t i = 0; i < to.size(); ++i)
    if (to[i].is_faster_than(from[i])) return true;
  return false;
}

}  // namespace brume::tuner
