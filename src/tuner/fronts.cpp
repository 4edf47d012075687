#include "fronts.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "base/error.hpp"
#include "numbers.hpp"

namespace brume::tuner {
namespace {

/// Whether it asks for a part of nothing on disk: the same strategy as with none of it.
bool repeats(const Point& p) {
  for (std::size_t axis = first_on_disk; axis < p.ratios.size(); ++axis)
    if (p.ratios[axis] > 0.0 && p.ratios[axis - 2] == 0.0) return true;
  return false;
}

/// The next value of a list; none at its end.
const double* next_value(const std::vector<double>& list, double value) {
  const auto at = std::ranges::upper_bound(list, value);
  return at == list.end() ? nullptr : &*at;
}

// Those of equal ratios beside each other: then few functions of costs are asked anew.
auto strategy(const Point& p) { return std::tie(p.zero_level, p.ratios, p.layers); }

struct ByStrategy {
  bool operator()(const Point& a, const Point& b) const { return strategy(a) < strategy(b); }
};

}  // namespace

std::vector<Point> pareto_front(std::vector<Point> points, bool host_matters) {
  std::ranges::stable_sort(points, {}, [](const Point& p) {
    // Of equal ones the first is kept: the one that saves least.
    return std::tuple{p.stable_s,     p.whole_s(),
                      p.shortest_s(), p.alone_s(),
                      p.host_bytes,   std::accumulate(p.ratios.begin(), p.ratios.end(), 0.0)};
  });
  std::vector<Point> front;
  for (const Point& point : points) {
    const auto beats = [&](const Point& other) {
      return other.whole_s() <= point.whole_s() && other.shortest_s() <= point.shortest_s() &&
             other.alone_s() <= point.alone_s() &&
             (!host_matters || other.host_bytes <= point.host_bytes);
    };
    if (std::ranges::none_of(front, beats)) front.push_back(point);  // they are no slower
  }
  return front;
}

Fronts::Key Fronts::key(const Seat& seat, int layers) {
  const analyzer::StageRole role = seat.role();
  return {role.first, role.last, seat.frame.in_flight(seat.after), seat.layout, layers};
}

const std::vector<Point>& Fronts::front(const Seat& seat, int layers) const {
  const auto found = fronts_.find(key(seat, layers));
  require(found != fronts_.end(), Failure::bug, "the front of {} layers was not prepared", layers);
  return found->second;
}

bool Fronts::fits(const Point& point, const Layout& mesh) const {
  const Limits& limits = limits_[std::size_t(mesh.group)];
  return point.device_bytes <= limits.device_bytes && !lacks_host(point, mesh) &&
         point.disk_bytes <= limits.rank_disk_bytes;
}

bool Fronts::lacks_host(const Point& point, const Layout& mesh) const {
  return point.host_bytes * mesh.devices_per_node >
         limits_[std::size_t(mesh.group)].node_host_bytes;
}

bool Fronts::struck(const Seat& seat, const Point& point) const {
  const auto list = struck_.find(key(seat, point.layers));
  return list != struck_.end() &&
         std::ranges::any_of(list->second, [&](const Point& p) { return p.same_strategy(point); });
}

void Fronts::prepare(const Seat& seat, int least_layers, int most_layers, double threshold_s) {
  std::set<Key> cells;
  std::vector<int> missing;
  std::vector<Point> found;
  for (int layers = least_layers; layers <= most_layers; ++layers) {
    const Key cell = key(seat, layers);
    const auto known = threshold_s_.find(cell);
    if ((known != threshold_s_.end() && known->second >= threshold_s) || !cells.insert(cell).second)
      continue;
    if (!struck_.contains(cell)) {
      missing.push_back(layers);
      continue;
    }
    const std::vector<Point> all = everything(seat, layers);
    found.insert(found.end(), all.begin(), all.end());
  }
  const std::vector<Point> climbed = climb(seat, missing, threshold_s);
  found.insert(found.end(), climbed.begin(), climbed.end());
  // Kept once they are whole: the search may be out of time before.
  for (const Key& cell : cells) {
    fronts_[cell].clear();
    threshold_s_[cell] = struck_.contains(cell) ? infinity : threshold_s;
  }
  feasible_ += std::int64_t(found.size());
  std::map<int, std::vector<Point>> by_layers;
  for (const Point& point : found) by_layers[point.layers].push_back(point);
  for (auto& [layers, points] : by_layers)
    fronts_[key(seat, layers)] = pareto_front(std::move(points), host_matters_);
}

/// Strategies without savings, one for each combination of the values that no order is known of.
std::vector<Point> Fronts::lowest(const Seat& seat, int layers) {
  const Rising rising = grid_.rising(seat, axes(seat));
  std::vector<Point> rows;
  for (int zero_level : axes_.zero_levels) {
    rows.push_back({.layout = seat.layout, .layers = layers, .zero_level = zero_level});
    if (seat.mesh().dp == 1) break;  // nothing to shard over
  }
  for (std::size_t axis = 0; axis < rising.size(); ++axis) {
    std::vector<Point> all;
    for (double ratio : axes(seat).ratios[axis]) {
      for (Point row : rows) {
        row.ratios[axis] = ratio;
        all.push_back(row);
      }
      if (rising[axis]) break;
    }
    rows = std::move(all);
  }
  return rows;
}

/// Leaves out rows that are slower than that whatever is recomputed, and so is all that saves more.
void Fronts::drop_slow(const Seat& seat, std::vector<Point>& rows, double threshold_s) {
  if (threshold_s == infinity) return;
  // Between none and all layers recomputed a stage's time is a line, but for its first and last
  // one.
  constexpr double bend = 0.01;
  std::vector<Point> ends = rows;
  if (axes_.recompute)
    for (Point row : rows) {
      row.ckpt_layers = row.layers;
      ends.push_back(row);
    }
  grid_.price_time(seat, ends);
  std::vector<Point> kept;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    double least_s = ends[i].stable_s;
    if (axes_.recompute) least_s = std::min(least_s, ends[rows.size() + i].stable_s);
    if (least_s * (1.0 - bend) <= threshold_s) kept.push_back(rows[i]);
  }
  rows = std::move(kept);
}

std::vector<Point> Fronts::climb(const Seat& seat, const std::vector<int>& layers,
                                 double threshold_s) {
  const Rising rising = grid_.rising(seat, axes(seat));
  std::vector<Point> found, level;
  for (int l : layers) {
    const std::vector<Point> rows = lowest(seat, l);
    level.insert(level.end(), rows.begin(), rows.end());
  }
  std::ranges::sort(level, ByStrategy{});
  while (drop_slow(seat, level, threshold_s), !level.empty()) {
    std::vector<Climb> may_climb;
    const std::vector<Point> fit = smallest_fits(seat, level, may_climb);
    found.insert(found.end(), fit.begin(), fit.end());
    std::set<Point, ByStrategy> next;
    for (std::size_t i = 0; i < level.size(); ++i)
      for (std::size_t axis = 0; axis < rising.size(); ++axis) {
        if (!(axis < first_on_disk ? may_climb[i].device : may_climb[i].host)) continue;
        const double* ratio = next_value(axes(seat).ratios[axis], level[i].ratios[axis]);
        if (!rising[axis] || !ratio) continue;
        Point higher = level[i];
        higher.ratios[axis] = *ratio;
        if (!repeats(higher)) next.insert(higher);
      }
    level.assign(next.begin(), next.end());
  }
  return found;
}

/// For each row the fewest recomputed layers that fit, priced; more where time falls with them.
/// `may_climb`: higher ratios may do better.
std::vector<Point> Fronts::smallest_fits(const Seat& seat, std::vector<Point> rows,
                                         std::vector<Climb>& may_climb) {
  const Layout& mesh = seat.mesh();
  const Limits& limits = limits_[std::size_t(mesh.group)];
  struct Bracket {
    std::size_t row;
    int unfit, fit;  ///< numbers of recomputed layers
    double unfit_bytes, fit_bytes;
  };
  strategies_ += std::int64_t(rows.size());
  may_climb.assign(rows.size(), {});
  std::vector<Point> found;
  grid_.price_memory(seat, rows);
  std::vector<Point> most;
  std::vector<std::size_t> row_of;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    may_climb[i].host = host_matters_ || lacks_host(rows[i], mesh);
    if (fits(rows[i], mesh)) {
      may_climb[i].device = false;
      found.push_back(rows[i]);
    } else if (axes_.recompute) {
      most.push_back(rows[i]);
      most.back().ckpt_layers = rows[i].layers;
      row_of.push_back(i);
    } else if (rows[i].device_bytes <= limits.device_bytes) {
      may_climb[i].device = false;  // what it lacks higher ratios only need more of
    }
  }
  grid_.price_memory(seat, most);
  std::vector<Bracket> open;
  for (std::size_t i = 0; i < most.size(); ++i) {
    if (fits(most[i], mesh))
      open.push_back({row_of[i], 0, most[i].ckpt_layers, infinity, most[i].device_bytes});
    else if (lacks_host(most[i], mesh))
      may_climb[row_of[i]].device = false;
  }
  while (!open.empty()) {
    std::vector<Point> middle;
    for (const Bracket& b : open) {
      middle.push_back(rows[b.row]);
      middle.back().ckpt_layers = (b.unfit + b.fit) / 2;
    }
    grid_.price_memory(seat, middle);
    std::vector<Bracket> still;
    for (std::size_t i = 0; i < open.size(); ++i) {
      Bracket b = open[i];
      const Point& m = middle[i];
      const double slack = sum_rounding * m.device_bytes;
      if (b.fit - b.unfit == 1) {
        rows[b.row].ckpt_layers = b.fit;
        found.push_back(rows[b.row]);
      } else if (m.device_bytes > b.unfit_bytes + slack || m.device_bytes < b.fit_bytes - slack) {
        try_all(seat, rows[b.row], 1, found);  // bytes do not fall with recomputed layers
      } else {
        (fits(m, mesh) ? b.fit : b.unfit) = m.ckpt_layers;
        (fits(m, mesh) ? b.fit_bytes : b.unfit_bytes) = m.device_bytes;
        still.push_back(b);
      }
    }
    open = std::move(still);
  }

  // Price them, one more recomputed layer, and all: where time or host bytes fall, try all.
  std::vector<Point> priced;
  for (const Point& p : found)
    for (int c : {p.ckpt_layers, p.ckpt_layers + 1, p.layers}) {
      priced.push_back(p);
      priced.back().ckpt_layers = std::min(c, axes_.recompute ? p.layers : p.ckpt_layers);
    }
  grid_.price_time(seat, priced);
  grid_.price_memory(seat, priced);
  std::vector<Point> result;
  for (std::size_t i = 0; i < priced.size(); i += 3) {
    result.push_back(priced[i]);
    bool falls = false;
    for (std::size_t k = i; k + 1 < i + 3; ++k) {
      const Point &from = priced[k], &to = priced[k + 1];
      falls |= to.stable_s < from.stable_s * (1.0 - sum_rounding) ||
               to.whole_s() < from.whole_s() * (1.0 - sum_rounding) ||
               to.shortest_s() < from.shortest_s() * (1.0 - sum_rounding) ||
               to.alone_s() < from.alone_s() * (1.0 - sum_rounding) ||
               (host_matters_ && to.host_bytes < from.host_bytes);
    }
    if (falls) try_all(seat, priced[i], priced[i].ckpt_layers + 1, result);
  }
  return result;
}

/// Adds what fits of a row with `from` and more recomputed layers, priced.
void Fronts::try_all(const Seat& seat, const Point& row, int from, std::vector<Point>& found) {
  std::vector<Point> all;
  for (int c = from; c <= (axes_.recompute ? row.layers : 0); ++c) {
    all.push_back(row);
    all.back().ckpt_layers = c;
  }
  grid_.price_memory(seat, all);
  grid_.price_time(seat, all);
  std::ranges::copy_if(all, std::back_inserter(found),
                       [&](const Point& p) { return fits(p, seat.mesh()); });
}

/// All strategies that fit and are not struck.
std::vector<Point> Fronts::everything(const Seat& seat, int layers) {
  std::vector<Point> rows{{.layout = seat.layout, .layers = layers}};
  std::vector<Point> found;
  const auto spread = [&](const auto& values, const auto& set) {
    std::vector<Point> all;
    for (const Point& row : rows)
      for (auto value : values) set(all.emplace_back(row), value);
    rows = std::move(all);
  };
  for (std::size_t axis = 0; axis < axes_.ratios.size(); ++axis)
    spread(axes(seat).ratios[axis], [&](Point& p, double ratio) { p.ratios[axis] = ratio; });
  const auto levels = seat.mesh().dp == 1 ? std::vector{axes_.zero_levels[0]} : axes_.zero_levels;
  spread(levels, [](Point& p, int level) { p.zero_level = level; });
  std::erase_if(rows, repeats);
  strategies_ += std::int64_t(rows.size());
  for (const Point& row : rows) try_all(seat, row, 0, found);
  std::erase_if(found, [&](const Point& p) { return struck(seat, p); });
  return found;
}

const std::vector<Point>& Fronts::unlimited(const Seat& seat) {
  const analyzer::StageRole role = seat.role();
  std::vector<Point>& fastest = unlimited_[{role.first, role.last, seat.layout}];
  if (!fastest.empty()) return fastest;
  const int most = grid_.model().num_layers, least = role.first && role.last ? most : 1;
  std::vector<Point> rows;
  for (Point row : lowest(seat, least)) {
    rows.clear();
    for (row.layers = least; row.layers <= most; ++row.layers)
      for (int c : {0, row.layers}) {
        row.ckpt_layers = c;
        if (c == 0 || axes_.recompute) rows.push_back(row);
      }
    strategies_ += std::int64_t(rows.size());
    grid_.price_time(seat, rows);  // one row after the other, because they differ by layers only
    if (fastest.empty())
      std::ranges::copy_if(rows, std::back_inserter(fastest),
                           [](const Point& p) { return p.ckpt_layers == 0; });
    for (const Point& p : rows) {
      Point& known = fastest[std::size_t(p.layers - least)];
      const double whole_s = std::min(known.whole_s(), p.whole_s());
      const double shortest_s = std::min(known.shortest_s(), p.shortest_s());
      const double alone_s = std::min(known.alone_s(), p.alone_s());
      known.stable_s = std::min(known.stable_s, p.stable_s);
      known.delta_s = whole_s - known.stable_s;
      known.less_s = known.stable_s - shortest_s;
      known.alone_delta_s = alone_s - known.stable_s;
    }
  }
  return fastest;
}

void Fronts::strike(const Seat& seat, const Point& point) {
  const Key cell = key(seat, point.layers);
  struck_[cell].push_back(point);
  fronts_.erase(cell);
  threshold_s_.erase(cell);
}

void Fronts::count_host() {
  host_matters_ = true;
  fronts_.clear();
  threshold_s_.clear();
}

}  // namespace brume::tuner
