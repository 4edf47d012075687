#include "fronts.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>

#include "base/error.hpp"
#include "numbers.hpp"

namespace brume::tuner {
namespace {

/// Whether it asks for a part of nothing: the same strategy as with none of it.
bool repeats(const Point& p) {
  for (std::size_t i = 0; i < p.ratios.size(); ++i)
    if (const auto whole = plan::shares[i].whole)
      if (p.ratios[i] > 0.0 && p.ratios[*whole] == 0.0) return true;
  return false;
}

bool is_left_out(const Point& p) { return repeats(p) || !p.parts_fit(); }

/// The next value of a list; none at its end.
const double* next_value(const std::vector<double>& list, double value) {
  const auto at = std::ranges::upper_bound(list, value);
  return at == list.end() ? nullptr : &*at;
}

// Those of equal ratios beside each other: then few functions of costs are asked anew.
auto strategy(const Point& p) { return std::tie(p.zero_level, p.replicas, p.ratios, p.layers); }

struct ByStrategy {
  bool operator()(const Point& a, const Point& b) const { return strategy(a) < strategy(b); }
};

}  // namespace

Fronts::Alike Fronts::alike(const Seat& seat) {
  const analyzer::StageRole role = seat.role();
  return {role.first, role.last, seat.frame.kept(seat.after), seat.layout};
}

const std::vector<Point>& Fronts::front(const Seat& seat, int layers) const {
  const auto found = fronts_.find(key(seat, layers));
  require(found != fronts_.end(), Failure::bug, "the front of {} layers was not prepared", layers);
  return found->second;
}

bool Fronts::struck(const Seat& seat, const Point& point) const {
  const auto list = struck_.find(key(seat, point.layers));
  return list != struck_.end() && std::ranges::any_of(list->second, [&](const Point& p) {
           return p.knobs() == point.knobs();
         });
}

void Fronts::prepare(Grid& grid, const Seat& seat, int least_layers, int most_layers,
                     double threshold_s) {
  std::vector<int> missing, struck;
  {
    const std::lock_guard lock(mutex_);
    for (int layers = least_layers; layers <= most_layers; ++layers) {
      const Key cell = key(seat, layers);
      const auto known = threshold_s_.find(cell);
      if (known == threshold_s_.end() || known->second < threshold_s)
        (struck_.contains(cell) ? struck : missing).push_back(layers);
    }
  }
  Found found = climb(grid, seat, missing, threshold_s);
  for (const int layers : struck) found[layers] = everything(grid, seat, layers);
  // Kept once they are whole: the search may be out of time before.
  for (auto& [layers, points] : found) {
    std::vector<Point> front = pareto_front(std::move(points), host_matters_);
    const std::lock_guard lock(mutex_);
    fronts_[key(seat, layers)] = std::move(front);
    threshold_s_[key(seat, layers)] =
        std::ranges::find(struck, layers) != struck.end() ? infinity : threshold_s;
  }
}

/// Strategies without savings, one for each way to shard.
std::vector<Point> Fronts::lowest(const Seat& seat, int layers) const {
  std::vector<Point> rows;
  for (const auto [zero_level, replicas] : axes_.shardings(seat.mesh())) {
    Point& row = rows.emplace_back();
    row.layout = seat.layout;
    row.layers = layers;
    row.stores_rest = axes_.store_rest;
    row.set_level(axes_.levels(layers).least);
    row.zero_level = zero_level;
    row.replicas = replicas;
    for (std::size_t axis = 0; axis < row.ratios.size(); ++axis)
      row.ratios[axis] = axes(seat).ratios[axis].front();
  }
  return rows;
}

/// The steps from a strategy to the next ratio along each axis; to the first one also together with
/// a part of it, because offloaded state may cost time, and take some off once the host steps it.
/// On the disk no part does.
std::vector<Step> Fronts::steps(const Seat& seat, const Point& from) const {
  std::vector<Step> found;
  const auto raise = [&](Point& to, std::size_t axis) {
    const double* ratio = next_value(axes(seat).ratios[axis], from.ratios[axis]);
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
std::vector<Point> Fronts::drop_slow(Grid& grid, const Seat& seat, std::vector<Point>& rows,
                                     double threshold_s, const Found& found) const {
  // Between none and all layers recomputed a stage's time is a line, but for its first and last
  // one.
  constexpr double bend = 0.01;
  RowTimes& times = rows_.row_times(seat, axes_);
  const std::vector<Point> least = times.least(grid, seat, rows);
  std::vector<Point> kept, higher;
  std::vector<std::size_t> dropped;  // of least, for each of the higher ones
  const auto is_slow = [&](const Point& p) { return p.stable_s * (1.0 - bend) > threshold_s; };
  std::vector<Step> gaining;  // of the last row that was dropped
  std::optional<Point> last;
  const auto same_steps = [](const Point& a, const Point& b) {
    return std::tie(a.zero_level, a.replicas, a.ratios) ==
           std::tie(b.zero_level, b.replicas, b.ratios);
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!is_slow(least[i]) && (host_matters_ || !is_beaten(least[i], found.at(rows[i].layers)))) {
      kept.push_back(rows[i]);
      continue;
    }
    if (!last || !same_steps(*last, rows[i])) {
      gaining = steps(seat, rows[i]);
      std::erase_if(gaining, [&](const Step& step) { return !times.gains(grid, seat, step); });
      last = rows[i];
    }
    for (const Step& step : gaining) {
      higher.emplace_back(rows[i]).ratios = step.to.ratios;
      dropped.push_back(i);
    }
  }
  rows = std::move(kept);
  const std::vector<Point> higher_least = times.least(grid, seat, higher);
  std::vector<Point> faster;
  for (std::size_t i = 0; i < higher.size(); ++i)
    if (higher_least[i].is_faster_than(least[dropped[i]])) faster.push_back(higher[i]);
  return faster;
}

Fronts::Found Fronts::climb(Grid& grid, const Seat& seat, const std::vector<int>& layers,
                            double threshold_s) {
  Rows& known = rows_.of(seat, axes_, host_matters_);
  Found found;
  std::vector<Point> level;
  for (int l : layers) {
    found[l] = {};
    const std::vector<Point> rows = lowest(seat, l);
    level.insert(level.end(), rows.begin(), rows.end());
  }
  std::ranges::sort(level, ByStrategy{});
  while (!level.empty()) {
    std::vector<Point> next = drop_slow(grid, seat, level, threshold_s, found);
    strategies_ += std::int64_t(level.size());
    const std::vector<Fit> fits = known.fits(grid, seat, level);
    feasible_ += std::ranges::count_if(fits, [](const Fit& fit) { return !fit.points.empty(); });
    std::vector<Step> doubtful;  // they save nothing that is short
    for (std::size_t i = 0; i < level.size(); ++i) {
      std::vector<Point>& all = found[level[i].layers];
      all.insert(all.end(), fits[i].points.begin(), fits[i].points.end());
      Point from = level[i];
      if (!fits[i].points.empty())
        from.set_level(fits[i].points[0].level());
      else
        from.set_level(axes_.levels(from.layers).most);
      for (Step& step : steps(seat, from)) {
        const bool saves =
            plan::shares[step.axis].on_disk() ? fits[i].climb.host : fits[i].climb.device;
        if (saves)
          next.push_back(step.to);
        else
          doubtful.emplace_back(std::move(step)).lacks_host = fits[i].climb.host;
      }
    }
    const std::vector<bool> gains = known.gains(grid, seat, doubtful);
    for (std::size_t i = 0; i < doubtful.size(); ++i)
      if (gains[i]) next.push_back(doubtful[i].to);
    for (Point& row : next) row.set_level(axes_.levels(row.layers).least);
    std::ranges::sort(next, ByStrategy{});
    const auto repeated = std::ranges::unique(
        next, [](const Point& a, const Point& b) { return strategy(a) == strategy(b); });
    next.erase(repeated.begin(), repeated.end());
    level = std::move(next);
  }
  return found;
}

/// All strategies that fit and are not struck.
std::vector<Point> Fronts::everything(Grid& grid, const Seat& seat, int layers) {
  std::vector<Point> rows{
      {.layout = seat.layout, .layers = layers, .stores_rest = axes_.store_rest}};
  const auto spread = [&](const auto& values, const auto& set) {
    std::vector<Point> all;
    for (const Point& row : rows)
      for (auto value : values) set(all.emplace_back(row), value);
    rows = std::move(all);
  };
  for (std::size_t axis = 0; axis < axes_.ratios.size(); ++axis)
    spread(axes(seat).ratios[axis], [&](Point& p, double ratio) { p.ratios[axis] = ratio; });
  spread(axes_.shardings(seat.mesh()), [](Point& p, const Axes::Sharding& sharding) {
    p.zero_level = sharding.zero_level;
    p.replicas = sharding.replicas;
  });
  std::erase_if(rows, is_left_out);
  strategies_ += std::int64_t(rows.size());
  const Limits& limits = rows_.limits(seat.mesh().group);
  std::vector<Point> found;
  for (Point row : rows) {
    std::vector<Point> all;
    const auto [least, most] = axes_.levels(layers);
    for (int level = least; level <= most; ++level) all.emplace_back(row).set_level(level);
    grid.price_memory(seat, all);
    std::erase_if(all,
                  [&](const Point& p) { return !limits.hold(p, seat.mesh()) || struck(seat, p); });
    feasible_ += all.empty() ? 0 : 1;
    grid.price_time(seat, all);
    found.insert(found.end(), all.begin(), all.end());
  }
  return found;
}

const std::vector<Point>& Fronts::unlimited(Grid& grid, const Seat& seat) {
  const analyzer::StageRole role = seat.role();
  std::vector<Point>& fastest = unlimited_[{role.first, role.last, seat.layout}];
  if (!fastest.empty()) return fastest;
  Times& times = rows_.times(seat);
  RowTimes& row_times = rows_.row_times(seat, axes_);
  const int most = grid.model().num_layers, least = role.first && role.last ? most : 1;
  std::vector<Point> found, rows, open = lowest(seat, least);
  std::set<Point, ByStrategy> seen(open.begin(), open.end());
  while (!open.empty()) {
    Point row = open.back();
    open.pop_back();
    for (Step& step : steps(seat, row))
      if (!seen.contains(step.to) && row_times.gains(grid, seat, step)) {
        seen.insert(step.to);
        open.push_back(step.to);
      }
    rows.clear();
    for (row.layers = least; row.layers <= most; ++row.layers)
      for (const int level : axes_.ends(row.layers)) rows.emplace_back(row).set_level(level);
    strategies_ += std::int64_t(rows.size());
    times.price(grid, seat, rows);  // one row after the other, because they differ by layers only
    if (found.empty())
      std::ranges::copy_if(rows, std::back_inserter(found),
                           [](const Point& p) { return p.level() == 0; });
    for (const Point& p : rows) found[std::size_t(p.layers - least)].take_less_of(p);
  }
  return fastest = std::move(found);
}

void Fronts::strike(const Seat& seat, const Point& point) {
  const Key cell = key(seat, point.layers);
  struck_[cell].push_back(point);
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
