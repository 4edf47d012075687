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

#include "grid.hpp"

namespace brume::tuner {

/// What a stage may take.
struct Limits {
  double device_bytes;
  double node_host_bytes;
  double rank_disk_bytes;  ///< an equal share of its node's disk

  bool lack_host(const Point& point, const Layout& mesh) const {
    return point.host_bytes * mesh.devices_per_node > node_host_bytes;
  }
  bool hold(const Point& point, const Layout& mesh) const {
    return point.device_bytes <= device_bytes && !lack_host(point, mesh) &&
           point.disk_bytes <= rank_disk_bytes;
  }
};

/// Drops points that another one beats: no slower in a middle microbatch, alone with its update,
/// nor in its shortest trip, in which the objective (pipeline.hpp) does not fall, and, where it
/// matters, no hungrier for host memory. @return by rising stable time
std::vector<Point> pareto_front(std::vector<Point> points, bool host_matters);
/// Whether a point is in no time faster than one of the others.
bool is_beaten(const Point& point, std::span<const Point> others);

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

  using Known = std::tuple<double, double, double, double>;  ///< Point::times()

 private:
  struct Strategy {
    explicit Strategy(const Point& point)
        : layers(point.layers),
          level(point.level()),
          zero_level(point.zero_level),
          replicas(point.replicas),
          ratios(point.ratios) {}
    bool operator==(const Strategy&) const = default;

    int layers, level, zero_level, replicas;
    Ratios ratios;
  };
  struct Hash {
    std::size_t operator()(const Strategy& strategy) const;
  };

  std::mutex mutex_;
  Lasting<Strategy, Known, Hash> known_;
};

/// A strategy but for its level.
struct RowKey {
  explicit RowKey(const Point& row)
      : layers(row.layers),
        zero_level(row.zero_level),
        replicas(row.replicas),
        ratios(row.ratios) {}
  bool operator==(const RowKey&) const = default;
  struct Hash {
    std::size_t operator()(const RowKey& key) const;
  };

  int layers, zero_level, replicas;
  Ratios ratios;
};

/// A strategy, and one with a larger ratio along one axis.
struct Step {
  Point from, to;
  std::size_t axis;
  bool lacks_host = false;  ///< host memory is short, or counts
};

/// How fast rows may be, at whichever level: for all threads. Rows of a role and a layout share it,
/// however much memory their stages have.
class RowTimes {
 public:
  explicit RowTimes(const Axes& axes) : axes_(axes) {}

  // The grid is the caller's, and may be out of time.

  /// Each row with the least that each time is at any level.
  std::vector<Point> least(Grid& grid, const Seat& seat, std::span<const Point> rows);
  /// Whether a step makes a stage faster, of whichever number of layers.
  bool gains(Grid& grid, const Seat& seat, const Step& step);

 private:
  const std::vector<Point>& samples(Grid& grid, const Seat& seat, Point row);

  Axes axes_;
  std::mutex mutex_;
  Lasting<RowKey, Times::Known, RowKey::Hash> least_;
  /// What samples() priced, by a row whose number of layers is 0.
  std::unordered_map<RowKey, std::vector<Point>, RowKey::Hash> samples_;
};

/// Rows of seats that are alike. Each is looked at once, whichever search asks first: for all
/// threads.
class Rows {
 public:
  Rows(const Limits& limits, Times& times, const Axes& axes, bool host_matters)
      : limits_(limits), times_(times), axes_(axes), host_matters_(host_matters) {}

  // The grid is the caller's, and may be out of time.

  /// Finds what fits of each row. Rows stand at their least level.
  std::vector<Fit> fits(Grid& grid, const Seat& seat, std::span<const Point> rows);
  /// Tells of each step whether it makes a stage faster, or, unless to the disk, needs less of the
  /// host memory that it lacks.
  std::vector<bool> gains(Grid& grid, const Seat& seat, std::span<const Step> steps);

 private:
  struct Row {
    bool looked_at = false;
    Climb climb;
    std::uint32_t begin = 0, end = 0;  ///< of points_
  };

  void look_at(Grid& grid, const Seat& seat, const std::vector<Point>& rows);

  Limits limits_;
  Times& times_;
  Axes axes_;
  bool host_matters_;
  std::mutex mutex_;
  Lasting<RowKey, Row, RowKey::Hash> rows_;
  std::vector<Point> points_;
  /// Whether steps to a row gain, by level and axis.
  std::map<std::pair<int, std::size_t>, Lasting<RowKey, bool, RowKey::Hash>> gains_;
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
