#include "rows.hpp"

#include <algorithm>
#include <functional>
#include <unordered_set>

#include "numbers.hpp"

namespace brume::tuner {
namespace {

std::size_t hash(std::size_t sum, const Ratios& ratios) {
  for (const double ratio : ratios) {
    sum = (sum ^ std::hash<double>{}(ratio)) * 0x9E3779B97F4A7C15u;
    sum ^= sum >> 32;
  }
  return sum;
}

/// Looks at rows of one seat.
class Look {
 public:
  Look(Grid& grid, Times& times, const Seat& seat, const Limits& limits, bool recompute,
       bool host_matters)
      : grid_(grid),
        times_(times),
        seat_(seat),
        mesh_(seat.mesh()),
        limits_(limits),
        recompute_(recompute),
        host_matters_(host_matters) {}

  std::vector<Fit> at(const std::vector<Point>& rows) {
    rows_ = rows;
    fits_.assign(rows.size(), {});
    bisect(ends());
    price_fewest();
    return std::move(fits_);
  }

 private:
  struct Bracket {
    std::size_t row;
    int unfit, fit;  ///< numbers of recomputed layers
    double unfit_bytes, fit_bytes;
  };

  std::vector<Bracket> ends();
  void bisect(std::vector<Bracket> open);
  void price_fewest();
  void try_all(std::size_t row, int from);

  Grid& grid_;
  Times& times_;
  const Seat& seat_;
  const Layout& mesh_;
  const Limits& limits_;
  bool recompute_, host_matters_;
  std::vector<Point> rows_;
  std::vector<Fit> fits_;            ///< [row]
  std::vector<std::size_t> fewest_;  ///< rows whose fewest recomputed layers that fit are known
};

/// None and all layers recomputed. @return rows that fit with all
std::vector<Look::Bracket> Look::ends() {
  grid_.price_memory(seat_, rows_);
  std::vector<Point> most;
  std::vector<std::size_t> row_of;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    Climb& climb = fits_[i].climb;
    climb.host = host_matters_ || limits_.lack_host(rows_[i], mesh_);
    if (limits_.hold(rows_[i], mesh_)) {
      climb.device = false;
      fewest_.push_back(i);
    } else if (recompute_) {
      most.push_back(rows_[i]);
      most.back().ckpt_layers = rows_[i].layers;
      row_of.push_back(i);
    } else if (rows_[i].device_bytes <= limits_.device_bytes) {
      climb.device = false;  // what it lacks higher ratios only need more of
    }
  }
  grid_.price_memory(seat_, most);
  std::vector<Bracket> open;
  for (std::size_t i = 0; i < most.size(); ++i) {
    if (limits_.hold(most[i], mesh_))
      open.push_back({row_of[i], 0, most[i].ckpt_layers, infinity, most[i].device_bytes});
    else if (limits_.lack_host(most[i], mesh_))
      fits_[row_of[i]].climb.device = false;
  }
  return open;
}

void Look::bisect(std::vector<Bracket> open) {
  while (!open.empty()) {
    std::vector<Point> middle;
    for (const Bracket& b : open) {
      middle.push_back(rows_[b.row]);
      middle.back().ckpt_layers = (b.unfit + b.fit) / 2;
    }
    grid_.price_memory(seat_, middle);
    std::vector<Bracket> still;
    for (std::size_t i = 0; i < open.size(); ++i) {
      Bracket b = open[i];
      const Point& m = middle[i];
      const double slack = sum_rounding * m.device_bytes;
      if (b.fit - b.unfit == 1) {
        rows_[b.row].ckpt_layers = b.fit;
        fewest_.push_back(b.row);
      } else if (m.device_bytes > b.unfit_bytes + slack || m.device_bytes < b.fit_bytes - slack) {
        try_all(b.row, 1);  // bytes do not fall with recomputed layers
      } else {
        const bool fits = limits_.hold(m, mesh_);
        (fits ? b.fit : b.unfit) = m.ckpt_layers;
        (fits ? b.fit_bytes : b.unfit_bytes) = m.device_bytes;
        still.push_back(b);
      }
    }
    open = std::move(still);
  }
}

/// Prices the fewest recomputed layers that fit, one more, and all: where time or host bytes fall,
/// all numbers are tried.
void Look::price_fewest() {
  std::vector<Point> priced;
  for (const std::size_t row : fewest_) {
    const Point& p = rows_[row];
    for (int c : {p.ckpt_layers, p.ckpt_layers + 1, p.layers}) {
      priced.push_back(p);
      priced.back().ckpt_layers = std::min(c, recompute_ ? p.layers : p.ckpt_layers);
    }
  }
  times_.price(grid_, seat_, priced);
  grid_.price_memory(seat_, priced);
  for (std::size_t i = 0; i < fewest_.size(); ++i) {
    const std::span<const Point> three(&priced[3 * i], 3);
    fits_[fewest_[i]].points.push_back(three[0]);
    bool falls = false;
    for (std::size_t k = 0; k < 2; ++k) {
      const Point &from = three[k], &to = three[k + 1];
      falls |= to.is_faster_than(from) || (host_matters_ && to.host_bytes < from.host_bytes);
    }
    if (falls) try_all(fewest_[i], three[0].ckpt_layers + 1);
  }
}

/// Adds what fits with `from` and more recomputed layers, but for what the fewest ones that fit
/// beat.
void Look::try_all(std::size_t row, int from) {
  std::vector<Point> all;
  for (int c = from; c <= (recompute_ ? rows_[row].layers : 0); ++c) {
    all.push_back(rows_[row]);
    all.back().ckpt_layers = c;
  }
  times_.price(grid_, seat_, all);
  std::vector<Point>& found = fits_[row].points;
  if (!found.empty() && !host_matters_)
    std::erase_if(all, [&](const Point& p) { return !p.is_faster_than(found.front()); });
  grid_.price_memory(seat_, all);
  std::erase_if(all, [&](const Point& p) { return !limits_.hold(p, mesh_); });
  found.insert(found.end(), all.begin(), all.end());
}

}  // namespace

std::size_t Times::Hash::operator()(const Strategy& strategy) const {
  return hash(std::size_t(strategy.replicas) << 24 ^ std::size_t(strategy.ckpt_layers) << 12 ^
                  std::size_t(strategy.layers) << 2 ^ std::size_t(strategy.zero_level),
              strategy.ratios);
}

void Times::price(Grid& grid, const Seat& seat, std::span<Point> points) {
  const std::lock_guard lock(mutex_);
  std::vector<Point> fresh;
  std::unordered_set<Strategy, Hash> asked;
  for (const Point& point : points)
    if (!known_.contains(Strategy(point)) && asked.emplace(Strategy(point)).second)
      fresh.push_back(point);
  grid.price_time(seat, fresh);
  for (Point& point : fresh) known_.emplace(Strategy(point), point.times());
  for (Point& point : points) point.times() = known_.at(Strategy(point));
}

std::size_t Rows::Hash::operator()(const Key& key) const {
  return hash(
      std::size_t(key.replicas) << 12 ^ std::size_t(key.layers) << 2 ^ std::size_t(key.zero_level),
      key.ratios);
}

std::vector<double> Rows::least_s(Grid& grid, const Seat& seat, std::span<const Point> rows) {
  const std::lock_guard lock(mutex_);
  std::vector<Row*> known;
  std::vector<Point> missing;
  for (const Point& row : rows) {
    known.push_back(&rows_[Key(row)]);
    if (known.back()->least_s < 0.0) missing.push_back(row);
  }
  const std::size_t count = missing.size();
  for (std::size_t i = 0; recompute_ && i < count; ++i) {
    missing.push_back(missing[i]);
    missing.back().ckpt_layers = missing[i].layers;
  }
  times_.price(grid, seat, missing);
  for (std::size_t i = 0; i < count; ++i)
    rows_[Key(missing[i])].least_s =
        recompute_ ? std::min(missing[i].stable_s, missing[count + i].stable_s)
                   : missing[i].stable_s;
  std::vector<double> least_s;
  for (const Row* row : known) least_s.push_back(row->least_s);
  return least_s;
}

std::vector<Fit> Rows::fits(Grid& grid, const Seat& seat, std::span<const Point> rows) {
  const std::lock_guard lock(mutex_);
  std::vector<Row*> known;
  std::vector<Point> missing;
  for (const Point& row : rows) {
    known.push_back(&rows_[Key(row)]);
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
  const auto known = [&](const Step& step) -> auto& {
    return gains_[{step.from.ckpt_layers, step.axis}];
  };
  std::vector<std::size_t> missing;
  std::vector<Point> points;
  for (std::size_t i = 0; i < steps.size(); ++i)
    if (!known(steps[i]).contains(Key(steps[i].to))) {
      missing.push_back(i);
      points.push_back(steps[i].from);
      points.push_back(steps[i].to);
    }
  times_.price(grid, seat, points);
  grid.price_memory(seat, points);
  for (std::size_t i = 0; i < missing.size(); ++i) {
    const Point &from = points[2 * i], &to = points[2 * i + 1];
    const Step& step = steps[missing[i]];
    known(step)[Key(to)] = to.is_faster_than(from) ||
                           (!plan::shares[step.axis].on_disk() && to.host_bytes < from.host_bytes);
  }
  std::vector<bool> found;
  for (const Step& step : steps) found.push_back(known(step).at(Key(step.to)));
  return found;
}

void Rows::look_at(Grid& grid, const Seat& seat, const std::vector<Point>& rows) {
  const std::vector<Fit> found =
      Look(grid, times_, seat, limits_, recompute_, host_matters_).at(rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Row& row = rows_[Key(rows[i])];
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

Rows& AllRows::of(const Seat& seat, bool recompute, bool host_matters) {
  Times& times = this->times(seat);
  const std::lock_guard lock(mutex_);
  const Frame& frame = seat.frame;
  std::unique_ptr<Rows>& rows =
      rows_[{seat.role(), seat.mesh(), frame.microbatches, frame.run_ahead,
             frame.in_flight(seat.after), recompute, host_matters}];
  if (!rows)
    rows = std::make_unique<Rows>(limits(seat.mesh().group), times, recompute, host_matters);
  return *rows;
}

}  // namespace brume::tuner
