#include "rows.hpp"

#include "grid.hpp"

namespace brume::tuner {

std::vector<Fit> Rows::fits(Grid& grid, const StagePosition& position,
                            std::span<const Strategy> rows) {
  const std::lock_guard lock(mutex_);
  const auto known = rows_.of(rows, &Strategy::row, [&](const std::vector<Strategy>& missing) {
    return search(grid, position, missing);
  });
  std::vector<Fit> found;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = *known[i];
    Fit& fit = found.emplace_back(Fit{rows[i], row.savings, {}});
    for (std::uint32_t p = row.begin; p < row.end; ++p) {
      const Kept& kept = points_[p];
      Point& point = fit.points.emplace_back(position.layout, rows[i].at_level(kept.level));
      point.times() = kept.times;
      point.device_bytes = kept.device_bytes;
      point.host_bytes = kept.host_bytes;
      point.disk_bytes = kept.disk_bytes;
    }
  }
  return found;
}

std::vector<Rows::Row> Rows::search(Grid& grid, const StagePosition& position,
                                    std::span<const Strategy> rows) {
  std::vector<Row> found;
  for (const Fit& fit :
       RowSearch(grid, times_, position, limits_, axes_, host_matters_).fits(rows)) {
    const auto begin = std::uint32_t(points_.size());
    for (const Point& point : fit.points)
      points_.push_back(
          {point, point.device_bytes, point.host_bytes, point.disk_bytes, point.strategy.level});
    found.push_back({fit.savings, begin, std::uint32_t(points_.size())});
  }
  return found;
}

std::vector<Step> Rows::that_gain(Grid& grid, const StagePosition& position,
                                  std::span<const Step> steps) {
  const std::lock_guard lock(mutex_);
  const auto known = gains_.of(steps, &Step::target, [&](const std::vector<Step>& missing) {
    return gain(grid, position, missing);
  });
  std::vector<Step> found;
  for (std::size_t i = 0; i < steps.size(); ++i)
    if (*known[i]) found.push_back(steps[i]);
  return found;
}

/// Whether each step gains.
std::vector<bool> Rows::gain(Grid& grid, const StagePosition& position,
                             std::span<const Step> steps) {
  PointGroups ends, lacking;
  for (const Step& step : steps) {
    ends.begin_group();
    ends.add({position.layout, step.from});
    ends.add({position.layout, step.to});
  }
  times_.price(grid, position, ends.all());
  std::vector<bool> found(steps.size());
  std::vector<std::size_t> may_save;  // host memory, though no time
  for (std::size_t i = 0; i < steps.size(); ++i) {
    found[i] = ends[i].back().is_faster_than(ends[i].front());
    if (found[i] || !steps[i].lacks_host || plan::shares[steps[i].axis].on_disk()) continue;
    may_save.push_back(i);
    lacking.begin_group();
    for (const Point& point : ends[i]) lacking.add(point);
  }
  grid.price_memory(position, lacking.all());
  for (std::size_t i = 0; i < may_save.size(); ++i)
    found[may_save[i]] = lacking[i].back().host_bytes < lacking[i].front().host_bytes;
  return found;
}

void AllRows::limit(const hardware::Cluster& cluster) {
  std::vector<Limits> limits;
  for (const hardware::NodeGroup& group : cluster.groups)
    limits.push_back({double(group.memory_bytes), double(group.host_memory_bytes),
                      double(group.disk_bytes) / group.devices_per_node});
  if (limits == limits_) return;
  rows_.clear();
  limits_ = std::move(limits);
}

Times& AllRows::times(const StagePosition& position) {
  const std::lock_guard lock(mutex_);
  return times_[{position.role(), position.mesh(), position.config.microbatches,
                 position.config.num_stages > 1}];
}

RowTimes& AllRows::row_times(const StagePosition& position, const Axes& axes) {
  const std::lock_guard lock(mutex_);
  const PipelineConfig& config = position.config;
  return row_times_
      .try_emplace({position.role(), position.mesh(), config.microbatches, config.num_stages > 1,
                    axes.recompute, axes.store},
                   axes)
      .first->second;
}

Rows& AllRows::of(const StagePosition& position, const Axes& axes, bool host_matters) {
  Times& times = this->times(position);
  const std::lock_guard lock(mutex_);
  const PipelineConfig& config = position.config;
  std::unique_ptr<Rows>& rows =
      rows_[{position.role(), position.mesh(), config.microbatches, config.order.run_ahead,
             config.memory_key(position.after), axes.recompute, axes.store, host_matters}];
  if (!rows)
    rows = std::make_unique<Rows>(limits(position.mesh().group), times, axes, host_matters);
  return *rows;
}

}  // namespace brume::tuner
