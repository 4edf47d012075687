#include "rows.hpp"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "grid.hpp"
#include "numbers.hpp"

namespace brume::tuner {

namespace {

/// Looks at rows of one seat.
class Look {
 public:
  Look(Grid& grid, Times& times, const Seat& seat, const Limits& limits, const Axes& axes,
       bool host_matters)
      : grid_(grid),
        times_(times),
        seat_(seat),
        mesh_(seat.mesh()),
        limits_(limits),
        axes_(axes),
        host_matters_(host_matters) {}

  std::vector<Fit> at(const std::vector<Strategy>& rows) {
    rows_ = points_of(seat_.layout, rows);
    fits_.assign(rows.size(), {});
    bisect(brackets());
    price_fewest();
    return std::move(fits_);
  }

 private:
  struct Bracket {
    std::size_t row;
    int unfit;  ///< level
    double unfit_bytes;
    Point fit;
    int tries = 0;

    bool closed() const { return fit.strategy.level - unfit == 1; }
    int middle(double limit_bytes) const;
  };

  std::vector<Bracket> brackets();
  void close(std::vector<Bracket>& open);
  void bisect(std::vector<Bracket> open);
  void price_fewest();
  /// Levels of a row, from one on.
  struct Higher {
    std::size_t row;
    int from;
  };
  void try_all(const std::vector<Higher>& rows);

  Grid& grid_;
  Times& times_;
  const Seat& seat_;
  const Layout& mesh_;
  const Limits& limits_;
  const Axes& axes_;
  bool host_matters_;
  std::vector<Point> rows_;          ///< with their bytes, once these were asked for
  std::vector<Fit> fits_;            ///< [row]
  std::vector<std::size_t> fewest_;  ///< rows that stand at their least level that fits
};

/// Where a line through the ends would meet the limit; what is no line ends by bisection.
int Look::Bracket::middle(double limit_bytes) const {
  constexpr int most_tries = 3;
  const int width = fit.strategy.level - unfit;
  if (tries >= most_tries || unfit_bytes <= limit_bytes) return unfit + width / 2;
  const double part = (unfit_bytes - limit_bytes) / (unfit_bytes - fit.device_bytes);
  return unfit + std::clamp(int(std::ceil(part * width)), 1, width - 1);
}

/// Levels between which a row begins to fit: with all of its layers recomputed selectively, else
/// with all of them in full. Only what fits with all of them stored asks for no higher ratios:
/// these may cost less time than the layers that they make room for take off.
std::vector<Look::Bracket> Look::brackets() {
  grid_.price_memory(seat_, rows_);
  std::vector<Bracket> open, higher;
  std::vector<Point> points;
  const auto next = [&](std::vector<Bracket>& from, auto level) {
    points.clear();
    for (const Bracket& b : from) {
      points.push_back(rows_[b.row]);
      points.back().strategy.level = level(rows_[b.row]);
    }
    grid_.price_memory(seat_, points);
  };
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    Climb& climb = fits_[i].climb;
    climb.host = host_matters_ || limits_.lack_host(rows_[i], mesh_);
    if (limits_.hold(rows_[i], mesh_)) {
      climb.device = false;
      fewest_.push_back(i);
    } else {
      higher.push_back({i, rows_[i].strategy.level, rows_[i].device_bytes, {}});
    }
  }
  if (axes_.store) {
    next(higher, [](const Point&) { return 0; });
    std::vector<Bracket> still;
    for (std::size_t i = 0; i < points.size(); ++i) {
      const Bracket& b = higher[i];
      if (limits_.hold(points[i], mesh_)) {
        open.push_back({b.row, b.unfit, b.unfit_bytes, points[i]});
      } else {
        still.push_back({b.row, 0, points[i].device_bytes, {}});
      }
    }
    higher = std::move(still);
  }
  if (!axes_.recompute) {
    for (const Bracket& b : higher)  // what it lacks higher ratios only need more of
      if (b.unfit_bytes <= limits_.device_bytes) fits_[b.row].climb.device = false;
    return open;
  }
  next(higher, [](const Point& row) { return row.layers(); });
  for (std::size_t i = 0; i < points.size(); ++i)
    if (limits_.hold(points[i], mesh_))
      open.push_back({higher[i].row, 0, higher[i].unfit_bytes, points[i]});
    else if (limits_.lack_host(points[i], mesh_))
      fits_[higher[i].row].climb.device = false;
  return open;
}

/// Takes out those whose least level that fits is known.
void Look::close(std::vector<Bracket>& open) {
  std::erase_if(open, [&](const Bracket& b) {
    if (b.closed()) {
      rows_[b.row] = b.fit;
      fewest_.push_back(b.row);
    }
    return b.closed();
  });
}

void Look::bisect(std::vector<Bracket> open) {
  std::vector<Higher> bent;  // their bytes do not fall with higher levels
  for (close(open); !open.empty(); close(open)) {
    std::vector<Point> middle;
    for (const Bracket& b : open) {
      middle.push_back(rows_[b.row]);
      middle.back().strategy.level = b.middle(limits_.device_bytes);
    }
    grid_.price_memory(seat_, middle);
    std::vector<Bracket> still;
    for (std::size_t i = 0; i < open.size(); ++i) {
      Bracket& b = open[i];
      const Point& m = middle[i];
      const double slack = sum_rounding * m.device_bytes;
      // The first layer that is recomputed needs room for what it computes again.
      const bool rises = b.unfit != 0 && m.device_bytes > b.unfit_bytes + slack;
      if (rises || m.device_bytes < b.fit.device_bytes - slack) {
        bent.push_back({b.row, rows_[b.row].strategy.level + 1});
        continue;
      }
      if (limits_.hold(m, mesh_)) {
        b.fit = m;
      } else {
        b.unfit = m.strategy.level;
        b.unfit_bytes = m.device_bytes;
      }
      ++b.tries;
      still.push_back(std::move(b));
    }
    open = std::move(still);
  }
  try_all(bent);
}

/// Prices the least level that fits, the next one, and the most: where time or host bytes fall, all
/// are tried.
void Look::price_fewest() {
  std::vector<Point> priced;
  for (const std::size_t row : fewest_) {
    const Point& p = rows_[row];
    const int level = p.strategy.level, most = axes_.levels(p.layers()).most;
    for (int next : {level, std::min(level + 1, most), most}) {
      priced.push_back(p);
      priced.back().strategy.level = next;
    }
  }
  times_.price(grid_, seat_, priced);
  if (host_matters_) grid_.price_memory(seat_, priced);  // else the first of them have their bytes
  std::vector<Higher> falling;
  for (std::size_t i = 0; i < fewest_.size(); ++i) {
    const std::span<const Point> three(&priced[3 * i], 3);
    fits_[fewest_[i]].points.push_back(three[0]);
    bool falls = false;
    for (std::size_t k = 0; k < 2; ++k) {
      const Point &from = three[k], &to = three[k + 1];
      falls |= to.is_faster_than(from) || (host_matters_ && to.host_bytes < from.host_bytes);
    }
    if (falls) falling.push_back({fewest_[i], three[0].strategy.level + 1});
  }
  try_all(falling);
}

/// Adds what fits at each row's levels from `from` on, but for what another one of the row that
/// fits beats: bytes take longer to price than times.
void Look::try_all(const std::vector<Higher>& rows) {
  std::vector<Point> all;
  std::vector<std::size_t> ends;
  for (const auto& [row, from] : rows) {
    for (int level = from; level <= axes_.levels(rows_[row].layers()).most; ++level) {
      all.push_back(rows_[row]);
      all.back().strategy.level = level;
    }
    ends.push_back(all.size());
  }
  times_.price(grid_, seat_, all);
  struct Open {
    std::size_t row;
    std::vector<Point> points;
  };
  std::vector<Open> open;
  for (std::size_t i = 0, begin = 0; i < rows.size(); begin = ends[i++])
    open.push_back({rows[i].row,
                    {all.begin() + std::ptrdiff_t(begin), all.begin() + std::ptrdiff_t(ends[i])}});
  while (!open.empty()) {
    std::vector<Point> next;
    ends.clear();
    for (auto& [row, points] : open) {
      const std::vector<Point>& found = fits_[row].points;
      if (!host_matters_)
        std::erase_if(points, [&](const Point& p) { return is_beaten(p, found); });
      const std::vector<Point> front = host_matters_ ? points : pareto_front(points, false);
      std::erase_if(points, [&](const Point& p) {
        return std::ranges::any_of(
            front, [&](const Point& q) { return p.strategy.level == q.strategy.level; });
      });
      next.insert(next.end(), front.begin(), front.end());
      ends.push_back(next.size());
    }
    grid_.price_memory(seat_, next);
    for (std::size_t i = 0, at = 0; i < open.size(); ++i)
      for (; at < ends[i]; ++at)
        if (limits_.hold(next[at], mesh_)) fits_[open[i].row].points.push_back(next[at]);
    std::erase_if(open, [](const Open& one) { return one.points.empty(); });
  }
}

}  // namespace

void Times::price(Grid& grid, const Seat& seat, std::span<Point> points) {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<Strategy, StageTimes*>> fresh;
  std::vector<const StageTimes*> known;
  std::vector<Point> asked;
  known.reserve(points.size());
  for (const Point& point : points) {
    const auto [entry, is_new] = known_->try_emplace(point.strategy);
    known.push_back(&entry->second);
    if (!is_new) continue;
    fresh.emplace_back(entry->first, &entry->second);
    asked.push_back(point);
  }
  try {
    grid.price_time(seat, asked);
  } catch (...) {
    for (const auto& [strategy, times] : fresh) known_->erase(strategy);
    throw;
  }
  for (std::size_t i = 0; i < fresh.size(); ++i) *fresh[i].second = asked[i].times();
  for (std::size_t i = 0; i < points.size(); ++i) points[i].times() = *known[i];
}

std::vector<StageTimes> RowTimes::least(Grid& grid, const Seat& seat,
                                        std::span<const Strategy> rows) {
  const std::lock_guard lock(mutex_);
  std::vector<StageTimes> found(rows.size());
  std::vector<Point> levels;
  std::vector<std::size_t> missing, ends;
  std::unordered_set<Strategy, Strategy::Hash> asked;  // a row may come twice
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (const auto known = least_->find(rows[i].row()); known != least_->end()) {
      found[i] = known->second;
      continue;
    }
    missing.push_back(i);
    if (asked.insert(rows[i].row()).second)
      for (const int level : axes_.turning_levels(rows[i].layers))
        levels.emplace_back(seat.layout, rows[i].at_level(level));
    ends.push_back(levels.size());
  }
  grid.price_time(seat, levels);
  for (std::size_t m = 0, at = 0; m < missing.size(); ++m) {
    const Strategy row = rows[missing[m]].row();
    if (at < ends[m]) {
      StageTimes least = levels[at];
      for (; at < ends[m]; ++at) least.take_less_of(levels[at]);
      least_->emplace(row, least);
    }
    found[missing[m]] = least_->at(row);
  }
  return found;
}

/// A row with the numbers of layers that tell of all others: from the fourth layer on each one adds
/// as much as the one before.
const std::vector<Point>& RowTimes::samples(Grid& grid, const Seat& seat, Strategy row) {
  constexpr int different = 4;
  row.layers = 0;
  const Strategy key = row.row();
  if (const auto known = samples_.find(key); known != samples_.end()) return known->second;
  const analyzer::StageRole role = seat.role();
  const int most = grid.model().num_layers, least = role.first && role.last ? most : 1;
  std::vector<Point> points;
  for (row.layers = least; row.layers <= most;
       row.layers = row.layers < different ? row.layers + 1 : std::max(most, row.layers + 1))
    for (const int level : axes_.turning_levels(row.layers))
      points.emplace_back(seat.layout, row.at_level(level));
  grid.price_time(seat, points);
  return samples_.emplace(key, std::move(points)).first->second;
}

bool RowTimes::gains(Grid& grid, const Seat& seat, const Step& step) {
  const std::lock_guard lock(mutex_);
  const std::vector<Point>& from = samples(grid, seat, step.from);
  const std::vector<Point>& to = samples(grid, seat, step.to);
  for (std::size_t i = 0; i < to.size(); ++i)
    if (to[i].is_faster_than(from[i])) return true;
  return false;
}

std::vector<Fit> Rows::fits(Grid& grid, const Seat& seat, std::span<const Strategy> rows) {
  const std::lock_guard lock(mutex_);
  std::vector<Row*> known;
  std::vector<Strategy> missing;
  for (const Strategy& row : rows) {
    known.push_back(&(*rows_)[row.row()]);
    if (!known.back()->looked_at) missing.push_back(row);
  }
  look_at(grid, seat, missing);
  std::vector<Fit> found;
  for (const Row* row : known) {
    Fit& fit = found.emplace_back();
    fit.climb = row->climb;
    fit.points.assign(points_.begin() + row->begin, points_.begin() + row->end);
    for (Point& point : fit.points) point.layout = seat.layout;
  }
  return found;
}

std::vector<bool> Rows::gains(Grid& grid, const Seat& seat, std::span<const Step> steps) {
  const std::lock_guard lock(mutex_);
  std::vector<const Step*> missing, saving;
  std::vector<Point> points, bytes;
  for (const Step& step : steps)
    if (!gains_[step.axis]->contains(step.to)) {
      missing.push_back(&step);
      points.emplace_back(seat.layout, step.from);
      points.emplace_back(seat.layout, step.to);
    }
  times_.price(grid, seat, points);
  for (std::size_t i = 0; i < missing.size(); ++i) {
    const Step& step = *missing[i];
    const Point &from = points[2 * i], &to = points[2 * i + 1];
    const bool is_faster = to.is_faster_than(from);
    (*gains_[step.axis])[step.to] = is_faster;
    if (is_faster || !step.lacks_host || plan::shares[step.axis].on_disk()) continue;
    saving.push_back(&step);
    bytes.push_back(from);
    bytes.push_back(to);
  }
  grid.price_memory(seat, bytes);
  for (std::size_t i = 0; i < saving.size(); ++i)
    (*gains_[saving[i]->axis])[saving[i]->to] =
        bytes[2 * i + 1].host_bytes < bytes[2 * i].host_bytes;
  std::vector<bool> found;
  for (const Step& step : steps) found.push_back(gains_[step.axis]->at(step.to));
  return found;
}

void Rows::look_at(Grid& grid, const Seat& seat, const std::vector<Strategy>& rows) {
  const std::vector<Fit> found = Look(grid, times_, seat, limits_, axes_, host_matters_).at(rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Row& row = (*rows_)[rows[i].row()];
    row.looked_at = true;
    row.climb = found[i].climb;
    row.begin = std::uint32_t(points_.size());
    points_.insert(points_.end(), found[i].points.begin(), found[i].points.end());
    row.end = std::uint32_t(points_.size());
  }
}

AllRows::AllRows(const hardware::Cluster& cluster) {
  for (const hardware::NodeGroup& group : cluster.groups)
    limits_.push_back({double(group.memory_bytes), double(group.host_memory_bytes),
                       double(group.disk_bytes) / group.devices_per_node});
}

Times& AllRows::times(const Seat& seat) {
  const std::lock_guard lock(mutex_);
  return times_[{seat.role(), seat.mesh(), seat.frame.microbatches, seat.frame.num_stages > 1}];
}

RowTimes& AllRows::row_times(const Seat& seat, const Axes& axes) {
  const std::lock_guard lock(mutex_);
  const Frame& frame = seat.frame;
  return row_times_
      .try_emplace({seat.role(), seat.mesh(), frame.microbatches, frame.num_stages > 1,
                    axes.recompute, axes.store},
                   axes)
      .first->second;
}

Rows& AllRows::of(const Seat& seat, const Axes& axes, bool host_matters) {
  Times& times = this->times(seat);
  const std::lock_guard lock(mutex_);
  const Frame& frame = seat.frame;
  std::unique_ptr<Rows>& rows =
      rows_[{seat.role(), seat.mesh(), frame.microbatches, frame.run_ahead, frame.kept(seat.after),
             axes.recompute, axes.store, host_matters}];
  if (!rows) rows = std::make_unique<Rows>(limits(seat.mesh().group), times, axes, host_matters);
  return *rows;
}

}  // namespace brume::tuner
