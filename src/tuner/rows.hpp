/// @file What is known of rows: strategies of a stage that differ in recomputed and stored layers
/// only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <span>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "analyzer/analyzer.hpp"
#include "point.hpp"

namespace brume::tuner {

class Grid;

/// What higher ratios of a row may save: device memory, host memory.
struct Climb {
  bool device = true, host = false;
};

/// What fits of a row. Of the levels (Point::level) the lowest that fits counts, found by
/// bisection; where time or host bytes fall with more, or device bytes do not, all that fit.
struct Fit {
  Climb climb;
  std::vector<Point> points;  ///< priced
};

/// A map whose entries stay: they lie in a few large blocks, which are given back
/// whole at its end. To destroy millions of them one by one took a fortieth of a search.
template <class Key, class Value, class Hash>
class Lasting {
  static_assert(std::is_trivially_destructible_v<Key> && std::is_trivially_destructible_v<Value>);

 public:
  using Map = std::pmr::unordered_map<Key, Value, Hash>;

  Map* operator->() { return map_; }
  Map& operator*() { return *map_; }

 private:
  std::pmr::monotonic_buffer_resource memory_;
  Map* map_ = std::pmr::polymorphic_allocator<>(&memory_).new_object<Map>();
};

/// Prices the time of each strategy of a role on a layout once, for all threads: it is the same
/// wherever in a pipeline the stage stands, however much memory that leaves.
class Times {
 public:
  /// Sets the points' times. The grid is the caller's, and may be out of time.
  void price(Grid& grid, const Seat& seat, std::span<Point> points);

 private:
  std::mutex mutex_;
  Lasting<Strategy, StageTimes, Strategy::Hash> known_;
};

/// A strategy, and one with a larger ratio along one axis.
struct Step {
  Strategy from, to;
  std::size_t axis;
  bool lacks_host = false;  ///< host memory is short, or counts
};

/// How fast rows may be, at whichever level: for all threads. Rows of a role and a layout share it,
/// however much memory their stages have.
class RowTimes {
 public:
  explicit RowTimes(const Axes& axes) : axes_(axes) {}

  // The grid is the caller's, and may be out of time.

  /// The least that each time of each row is at any level.
  std::vector<StageTimes> least(Grid& grid, const Seat& seat, std::span<const Strategy> rows);
  /// Whether a step makes a stage faster, of whichever number of layers.
  bool gains(Grid& grid, const Seat& seat, const Step& step);

 private:
  const std::vector<Point>& samples(Grid& grid, const Seat& seat, Strategy row);

  Axes axes_;
  std::mutex mutex_;
  Lasting<Strategy, StageTimes, Strategy::Hash> least_;  ///< by Strategy::row()
  /// What samples() priced, by a row whose number of layers is 0.
  std::unordered_map<Strategy, std::vector<Point>, Strategy::Hash> samples_;
};

/// Rows of seats that are alike. Each is looked at once, whichever search asks first: for all
/// threads.
class Rows {
 public:
  Rows(const Limits& limits, Times& times, const Axes& axes, bool host_matters)
      : limits_(limits), times_(times), axes_(axes), host_matters_(host_matters) {}

  // The grid is the caller's, and may be out of time.

  /// Finds what fits of each row. Rows stand at their least level.
  std::vector<Fit> fits(Grid& grid, const Seat& seat, std::span<const Strategy> rows);
  /// Tells of each step whether it makes a stage faster, or, unless to the disk, needs less of the
  /// host memory that it lacks.
  std::vector<bool> gains(Grid& grid, const Seat& seat, std::span<const Step> steps);

 private:
  struct Row {
    bool looked_at = false;
    Climb climb;
    std::uint32_t begin = 0, end = 0;  ///< of points_
  };

  void look_at(Grid& grid, const Seat& seat, const std::vector<Strategy>& rows);

  Limits limits_;
  Times& times_;
  Axes axes_;
  bool host_matters_;
  std::mutex mutex_;
  Lasting<Strategy, Row, Strategy::Hash> rows_;  ///< by Strategy::row()
  std::vector<Point> points_;
  /// Whether steps to a strategy gain, by axis.
  std::map<std::size_t, Lasting<Strategy, bool, Strategy::Hash>> gains_;
};

/// The rows of all seats, for searches in the same memory.
class AllRows {
 public:
  explicit AllRows(const hardware::Cluster& cluster);

  Rows& of(const Seat& seat, const Axes& axes, bool host_matters);
  Times& times(const Seat& seat);
  RowTimes& row_times(const Seat& seat, const Axes& axes);
  const Limits& limits(int group) const { return limits_[std::size_t(group)]; }

 private:
  /// Role, layout, microbatches, run-ahead, kept; whether layers may be recomputed, and stored, and
  /// a node's stages share its host memory.
  using Key = std::tuple<analyzer::StageRole, Layout, int, int, Kept, bool, bool, bool>;

  std::vector<Limits> limits_;  ///< [group]
  std::mutex mutex_;
  /// By role, layout, microbatches, whether there are other stages.
  std::map<std::tuple<analyzer::StageRole, Layout, int, bool>, Times> times_;
  /// The same, and whether layers may be recomputed, and stored.
  std::map<std::tuple<analyzer::StageRole, Layout, int, bool, bool, bool>, RowTimes> row_times_;
  std::map<Key, std::unique_ptr<Rows>> rows_;
};

}  // namespace brume::tuner
