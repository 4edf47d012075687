/// @file Search for the levels at which rows fit.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "point.hpp"

namespace brume::tuner {

class Grid;
class Times;

/// Memory that higher ratios of a row may save.
struct Savings {
  bool device = true, host = false;
};

/// Points of a row that fit. The lowest level that fits counts, found by bisection. If time or host
/// bytes fall with higher levels, or device bytes do not, all that fit count.
struct Fit {
  Strategy row;
  Savings savings{};
  std::vector<Point> points;  ///< priced
};

/// Looks at rows of one position.
class RowSearch {
 public:
  /// The arguments must outlive the object.
  RowSearch(Grid& grid, Times& times, const StagePosition& position, const Limits& limits,
            const Axes& axes, bool host_matters)
      : grid_(grid),
        times_(times),
        position_(position),
        mesh_(position.mesh()),
        limits_(limits),
        axes_(axes),
        host_matters_(host_matters) {}

  /// Finds what fits of each row. Rows are at their least level.
  std::vector<Fit> fits(std::span<const Strategy> rows);

 private:
  struct Row {
    Point point;  ///< its level is the last one tried
    Fit fit;
  };
  /// Two levels of a row between which it begins to fit.
  struct Bracket {
    Row* row;
    int unfit;  ///< level
    double unfit_bytes;
    Point fit = {};
    Point tried = {};
    int tries = 0;

    bool closed() const { return fit.strategy.level - unfit == 1; }
    int middle(double limit_bytes) const;
  };
  /// Levels of a row, from one on.
  struct Higher {
    Row* row;
    int from;
  };

  void try_levels(std::vector<Bracket>& brackets, const auto& level_of);
  std::vector<Bracket> brackets();
  void close(std::vector<Bracket>& open);
  void bisect(std::vector<Bracket> open);
  void price_fewest();
  void try_all(const std::vector<Higher>& rows);

  Grid& grid_;
  Times& times_;
  const StagePosition& position_;
  const Layout& mesh_;
  const Limits& limits_;
  const Axes& axes_;
  bool host_matters_;
  std::vector<Row> rows_;
  std::vector<Row*> fewest_;  ///< rows that are at their least level that fits
};

}  // namespace brume::tuner
