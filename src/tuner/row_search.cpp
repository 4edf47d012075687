#include "row_search.hpp"

#include <algorithm>
#include <cmath>

#include "grid.hpp"
#include "numbers.hpp"
#include "times.hpp"

namespace brume::tuner {
namespace {

/// Prices the memory of one point of each item, all at once.
template <class Item>
void price_memory(Grid& grid, const StagePosition& position, std::vector<Item>& items,
                  Point Item::*point) {
  std::vector<Point> points;
  points.reserve(items.size());
  for (const Item& item : items) points.push_back(item.*point);
  grid.price_memory(position, points);
  for (std::size_t i = 0; i < items.size(); ++i) items[i].*point = points[i];
}

}  // namespace

std::vector<Fit> RowSearch::fits(std::span<const Strategy> rows) {
  for (const Strategy& row : rows)
    rows_.push_back({{position_.layout, row}, {.row = row, .points = {}}});
  bisect(brackets());
  price_fewest();
  std::vector<Fit> found;
  for (Row& row : rows_) found.push_back(std::move(row.fit));
  return found;
}

/// Level at which a line through the ends meets the limit; after a few tries the middle one.
int RowSearch::Bracket::middle(double limit_bytes) const {
  constexpr int most_tries = 3;
  const int width = fit.strategy.level - unfit;
  if (tries >= most_tries || unfit_bytes <= limit_bytes) return unfit + width / 2;
  const double part = (unfit_bytes - limit_bytes) / (unfit_bytes - fit.device_bytes);
  return unfit + std::clamp(int(std::ceil(part * width)), 1, width - 1);
}

void RowSearch::try_levels(std::vector<Bracket>& brackets, const auto& level_of) {
  for (Bracket& b : brackets) {
    b.tried = b.row->point;
    b.tried.strategy.level = level_of(b);
  }
  price_memory(grid_, position_, brackets, &Bracket::tried);
}

/// Levels between which a row begins to fit: with all of its layers recomputed selectively, else
/// with all of them in full. Only what fits with all of them stored asks for no higher ratios:
/// they may cost less time than the layers save for which they free memory.
std::vector<RowSearch::Bracket> RowSearch::brackets() {
  price_memory(grid_, position_, rows_, &Row::point);
  std::vector<Bracket> open, higher;
  for (Row& row : rows_) {
    row.fit.savings.host = host_matters_ || limits_.lack_host(row.point, mesh_);
    if (limits_.hold(row.point, mesh_)) {
      row.fit.savings.device = false;
      fewest_.push_back(&row);
    } else {
      higher.push_back({&row, row.point.strategy.level, row.point.device_bytes});
    }
  }
  if (axes_.store) {
    try_levels(higher, [](const Bracket&) { return 0; });
    std::vector<Bracket> still;
    for (Bracket& b : higher)
      if (limits_.hold(b.tried, mesh_)) {
        b.fit = b.tried;
        open.push_back(b);
      } else {
        still.push_back({b.row, 0, b.tried.device_bytes});
      }
    higher = std::move(still);
  }
  if (!axes_.recompute) {
    for (const Bracket& b : higher)  // what it lacks higher ratios only need more of
      if (b.unfit_bytes <= limits_.device_bytes) b.row->fit.savings.device = false;
    return open;
  }
  try_levels(higher, [](const Bracket& b) { return b.row->point.layers(); });
  for (Bracket& b : higher)
    if (limits_.hold(b.tried, mesh_))
      open.push_back({b.row, 0, b.unfit_bytes, b.tried});
    else if (limits_.lack_host(b.tried, mesh_))
      b.row->fit.savings.device = false;
  return open;
}

/// Takes out those whose least level that fits is known.
void RowSearch::close(std::vector<Bracket>& open) {
  std::erase_if(open, [&](const Bracket& b) {
    if (b.closed()) {
      b.row->point = b.fit;
      fewest_.push_back(b.row);
    }
    return b.closed();
  });
}

void RowSearch::bisect(std::vector<Bracket> open) {
  std::vector<Higher> bent;  // their bytes do not fall with higher levels
  for (close(open); !open.empty(); close(open)) {
    try_levels(open, [&](const Bracket& b) { return b.middle(limits_.device_bytes); });
    std::vector<Bracket> still;
    for (Bracket& b : open) {
      const double slack = sum_rounding * b.tried.device_bytes;
      // The first layer that is recomputed needs room for what it computes again.
      const bool rises = b.unfit != 0 && b.tried.device_bytes > b.unfit_bytes + slack;
      if (rises || b.tried.device_bytes < b.fit.device_bytes - slack) {
        bent.push_back({b.row, b.row->point.strategy.level + 1});
        continue;
      }
      if (limits_.hold(b.tried, mesh_)) {
        b.fit = b.tried;
      } else {
        b.unfit = b.tried.strategy.level;
        b.unfit_bytes = b.tried.device_bytes;
      }
      ++b.tries;
      still.push_back(b);
    }
    open = std::move(still);
  }
  try_all(bent);
}

/// Prices the least level that fits, the next one, and the most: where time or host bytes fall, all
/// are tried.
void RowSearch::price_fewest() {
  PointGroups groups;
  for (const Row* row : fewest_) {
    const int level = row->point.strategy.level, most = axes_.levels(row->point.layers()).most;
    groups.begin_group();
    for (int next : {level, std::min(level + 1, most), most})
      groups.add(row->point).strategy.level = next;
  }
  times_.price(grid_, position_, groups.all());
  if (host_matters_)
    grid_.price_memory(position_, groups.all());  // else the first have their bytes
  std::vector<Higher> falling;
  for (std::size_t i = 0; i < fewest_.size(); ++i) {
    const std::span<const Point> three = groups[i];
    fewest_[i]->fit.points.push_back(three[0]);
    const auto falls = [&](const Point& from, const Point& to) {
      return to.is_faster_than(from) || (host_matters_ && to.host_bytes < from.host_bytes);
    };
    if (falls(three[0], three[1]) || falls(three[1], three[2]))
      falling.push_back({fewest_[i], three[0].strategy.level + 1});
  }
  try_all(falling);
}

/// Adds what fits at each row's levels from `from` on, but for what another one of the row that
/// fits beats: bytes take longer to price than times.
void RowSearch::try_all(const std::vector<Higher>& rows) {
  PointGroups groups;
  for (const auto& [row, from] : rows) {
    groups.begin_group();
    for (int level = from; level <= axes_.levels(row->point.layers()).most; ++level)
      groups.add(row->point).strategy.level = level;
  }
  times_.price(grid_, position_, groups.all());
  struct Open {
    Fit* fit;
    std::vector<Point> points;
  };
  std::vector<Open> open;
  for (std::size_t i = 0; i < rows.size(); ++i)
    open.push_back({&rows[i].row->fit, {groups[i].begin(), groups[i].end()}});
  while (!open.empty()) {
    PointGroups next;
    for (auto& [fit, points] : open) {
      if (!host_matters_)
        std::erase_if(points, [&](const Point& p) { return is_beaten(p, fit->points); });
      const std::vector<Point> front = host_matters_ ? points : pareto_front(points, false);
      std::erase_if(points, [&](const Point& p) {
        return std::ranges::any_of(
            front, [&](const Point& q) { return p.strategy.level == q.strategy.level; });
      });
      next.begin_group();
      for (const Point& point : front) next.add(point);
    }
    grid_.price_memory(position_, next.all());
    for (std::size_t i = 0; i < open.size(); ++i)
      for (const Point& point : next[i])
        if (limits_.hold(point, mesh_)) open[i].fit->points.push_back(point);
    std::erase_if(open, [](const Open& one) { return one.points.empty(); });
  }
}

}  // namespace brume::tuner
