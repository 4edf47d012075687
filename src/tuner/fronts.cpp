#include "fronts.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.hpp"
#include "base/numbers.hpp"
#include "grid.hpp"

namespace brume::tuner {
namespace {

bool is_left_out(const Strategy& s) { return s.repeats() || !s.parts_fit(); }

/// The next value of a list; none at its end.
const double* next_value(const std::vector<double>& list, double value) {
  const auto at = std::ranges::upper_bound(list, value);
  return at == list.end() ? nullptr : &*at;
}

}  // namespace

Fronts::Class Fronts::class_of(const StagePosition& position) {
  const analyzer::StageRole role = position.role();
  return {role.first, role.last, position.config.memory_key(position.after), position.layout};
}

const std::vector<Point>& Fronts::front(const StagePosition& position, int layers) const {
  const auto found = fronts_.find(key(position, layers));
  require(found != fronts_.end(), Failure::bug, "the front of {} layers was not prepared", layers);
  return found->second;
}

bool Fronts::excluded(const StagePosition& position, const Strategy& strategy) const {
  const auto list = excluded_.find(key(position, strategy.layers));
  return list != excluded_.end() && std::ranges::find(list->second, strategy) != list->second.end();
}

void Fronts::prepare(Grid& grid, const StagePosition& position, int least_layers, int most_layers,
                     double threshold_s) {
  std::vector<int> missing, excluded;
  {
    const std::lock_guard lock(mutex_);
    for (int layers = least_layers; layers <= most_layers; ++layers) {
      const Key cell = key(position, layers);
      const auto known = threshold_s_.find(cell);
      if (known == threshold_s_.end() || known->second < threshold_s)
        (excluded_.contains(cell) ? excluded : missing).push_back(layers);
    }
  }
  Found found = search(grid, position, missing, threshold_s);
  for (const int layers : excluded) found[layers] = everything(grid, position, layers);
  // MemoryKey once they are whole: the search may be out of time before.
  for (auto& [layers, points] : found) {
    std::vector<Point> front = pareto_front(std::move(points), host_matters_);
    const std::lock_guard lock(mutex_);
    fronts_[key(position, layers)] = std::move(front);
    threshold_s_[key(position, layers)] =
        std::ranges::find(excluded, layers) != excluded.end() ? infinity : threshold_s;
  }
}

/// The steps from a strategy to the next ratio along each axis; to the first one also together with
/// a part of it, because offloaded state may cost time, and take some off once the host steps it.
/// Parts on the disk are not raised with it.
std::vector<Step> Fronts::steps(const StagePosition& position, const Strategy& from) const {
  std::vector<Step> found;
  const auto raise = [&](Strategy& to, std::size_t axis) {
    const double* ratio = next_value(axes(position).ratios[axis], from.ratios[axis]);
    if (ratio) to.ratios[axis] = *ratio;
    return ratio != nullptr;
  };
  const auto add = [&](const Step& step) {
    if (!is_left_out(step.to)) found.push_back(step);
  };
  for (std::size_t axis = 0; axis < from.ratios.size(); ++axis) {
    Step step{from, from, axis};
    if (!raise(step.to, axis)) continue;
    add(step);
    if (from.ratios[axis] > 0.0) continue;
    for (std::size_t part = 0; part < from.ratios.size(); ++part) {
      if (plan::shares[part].whole != axis || plan::shares[part].on_disk()) continue;
      Step both = step;
      if (raise(both.to, part)) add(both);
    }
  }
  return found;
}

/// Leaves out rows that, whatever is recomputed, are too slow, or in no time faster than what was
/// found to fit. @return of these the next ones that take less time
std::vector<Strategy> Fronts::drop_slow(Grid& grid, const StagePosition& position,
                                        std::vector<Strategy>& rows, double threshold_s,
                                        const Found& found) const {
  // Between none and all layers recomputed a stage's time is a line, but for its first and last
  // one.
  constexpr double bend = 0.01;
  RowTimes& times = rows_.row_times(position, axes_);
  const std::vector<StageTimes> least = times.least(grid, position, rows);
  std::vector<Strategy> kept, higher;
  std::vector<StageTimes> lower;  // of the row that each of the higher ones follows
  const auto is_slow = [&](const StageTimes& t) { return t.stable_s * (1.0 - bend) > threshold_s; };
  std::vector<Step> gaining;  // of the last row that was dropped
  const Strategy* last = nullptr;
  const auto same_steps = [](const Strategy& a, const Strategy& b) {
    return std::tie(a.sharding, a.ratios) == std::tie(b.sharding, b.ratios);
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!is_slow(least[i]) && (host_matters_ || !is_beaten(least[i], found.at(rows[i].layers)))) {
      kept.push_back(rows[i]);
      continue;
    }
    if (!last || !same_steps(*last, rows[i])) {
      gaining = steps(position, rows[i]);
      std::erase_if(gaining, [&](const Step& step) { return !times.gains(grid, position, step); });
      last = &rows[i];
    }
    for (const Step& step : gaining) {
      higher.emplace_back(rows[i]).ratios = step.to.ratios;
      lower.push_back(least[i]);
    }
  }
  rows = std::move(kept);
  const std::vector<StageTimes> higher_least = times.least(grid, position, higher);
  std::vector<Strategy> faster;
  for (std::size_t i = 0; i < higher.size(); ++i)
    if (higher_least[i].is_faster_than(lower[i])) faster.push_back(higher[i]);
  return faster;
}

Fronts::Found Fronts::search(Grid& grid, const StagePosition& position,
                             const std::vector<int>& layers, double threshold_s) {
  Rows& known = rows_.of(position, axes_, host_matters_);
  Found found;
  std::vector<Strategy> level;
  for (int l : layers) {
    found[l] = {};
    const std::vector<Strategy> rows = axes(position).lowest(position.mesh(), l);
    level.insert(level.end(), rows.begin(), rows.end());
  }
  std::ranges::sort(level);
  while (!level.empty()) {
    std::vector<Strategy> next = drop_slow(grid, position, level, threshold_s, found);
    strategies_ += std::int64_t(level.size());
    std::vector<Step> doubtful;  // they save nothing that is short
    for (const Fit& fit : known.fits(grid, position, level)) {
      feasible_ += fit.points.empty() ? 0 : 1;
      std::vector<Point>& all = found[fit.row.layers];
      all.insert(all.end(), fit.points.begin(), fit.points.end());
      const int from =
          fit.points.empty() ? axes_.levels(fit.row.layers).most : fit.points[0].strategy.level;
      for (Step& step : steps(position, fit.row.at_level(from))) {
        const bool saves =
            plan::shares[step.axis].on_disk() ? fit.savings.host : fit.savings.device;
        if (saves)
          next.push_back(step.to);
        else
          doubtful.emplace_back(std::move(step)).lacks_host = fit.savings.host;
      }
    }
    for (const Step& step : known.that_gain(grid, position, doubtful)) next.push_back(step.to);
    for (Strategy& row : next) row.level = axes_.levels(row.layers).least;
    std::ranges::sort(next);
    const auto repeated = std::ranges::unique(next);
    next.erase(repeated.begin(), repeated.end());
    level = std::move(next);
  }
  return found;
}

/// All strategies that fit and are not excluded.
std::vector<Point> Fronts::everything(Grid& grid, const StagePosition& position, int layers) {
  std::vector<Strategy> rows = axes(position).rows(position.mesh(), layers);
  std::erase_if(rows, is_left_out);
  strategies_ += std::int64_t(rows.size());
  const Limits& limits = rows_.limits(position.mesh().group);
  std::vector<Point> found;
  for (const Strategy& row : rows) {
    std::vector<Point> all;
    const auto [least, most] = axes_.levels(layers);
    for (int level = least; level <= most; ++level)
      all.emplace_back(position.layout, row.at_level(level));
    grid.price_memory(position, all);
    std::erase_if(all, [&](const Point& p) {
      return !limits.hold(p, position.mesh()) || excluded(position, p.strategy);
    });
    feasible_ += all.empty() ? 0 : 1;
    grid.price_time(position, all);
    found.insert(found.end(), all.begin(), all.end());
  }
  return found;
}

const std::vector<Point>& Fronts::unlimited(Grid& grid, const StagePosition& position) {
  const analyzer::StageRole role = position.role();
  std::vector<Point>& fastest = unlimited_[{role.first, role.last, position.layout}];
  if (!fastest.empty()) return fastest;
  Times& times = rows_.times(position);
  RowTimes& row_times = rows_.row_times(position, axes_);
  const int most = grid.model().num_layers, least = role.first && role.last ? most : 1;
  std::vector<Point> found, points;
  std::vector<Strategy> open = axes(position).lowest(position.mesh(), least);
  std::set<Strategy> seen(open.begin(), open.end());
  while (!open.empty()) {
    Strategy row = open.back();
    open.pop_back();
    for (Step& step : steps(position, row))
      if (!seen.contains(step.to) && row_times.gains(grid, position, step)) {
        seen.insert(step.to);
        open.push_back(step.to);
      }
    points.clear();
    for (row.layers = least; row.layers <= most; ++row.layers)
      for (const int level : axes_.ends(row.layers))
        points.emplace_back(position.layout, row.at_level(level));
    strategies_ += std::int64_t(points.size());
    times.price(grid, position, points);  // row by row, because they differ by layers only
    if (found.empty())
      std::ranges::copy_if(points, std::back_inserter(found),
                           [](const Point& p) { return p.strategy.level == 0; });
    for (const Point& p : points) found[p.layers() - least].take_less_of(p);
  }
  return fastest = std::move(found);
}

void Fronts::exclude(const StagePosition& position, const Strategy& strategy) {
  const Key cell = key(position, strategy.layers);
  excluded_[cell].push_back(strategy);
  fronts_.erase(cell);
  threshold_s_.erase(cell);
}

void Fronts::count_host() {
  if (host_matters_) return;
  host_matters_ = true;
  fronts_.clear();
  threshold_s_.clear();
}

}  // namespace brume::tuner
