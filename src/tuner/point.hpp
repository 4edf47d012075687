/// @file Points: strategies with their times and bytes, and which of them dominate others.
#pragma once

#include <span>
#include <tuple>
#include <vector>

#include "space.hpp"
#include "strategy.hpp"

namespace brume::tuner {

/// Times of a stage in which points compete [s].
struct StageTimes {
  double stable_s = 0.0;  ///< both passes of a middle microbatch
  double delta_s = 0.0;   ///< extra time of the first and last microbatch, where nothing hides it
  double early_send_s = 0.0;        ///< the fastest microbatch sends so much sooner
  double standalone_delta_s = 0.0;  ///< the same as delta_s, where nothing hides updates

  /// The first forward and the last backward until their messages leave, with their updates as far
  /// as they are waited for.
  double fill_s() const { return stable_s + delta_s; }
  /// The same to their end, where nothing hides updates.
  double standalone_s() const { return stable_s + standalone_delta_s; }
  /// Both passes of the microbatch that is fastest here, until their messages leave.
  double shortest_s() const { return stable_s - early_send_s; }
  /// Takes each of the four times that the other one has less of.
  void take_less_of(const StageTimes& other);
  /// True if one of the four times is less by more than rounding.
  bool is_faster_than(const StageTimes& other) const;
};

/// A strategy on one of the layouts, with its times and bytes.
struct Point : StageTimes {
  Point() = default;
  Point(int layout, const Strategy& strategy) : layout(layout), strategy(strategy) {}

  int layout = 0;  ///< index in the configuration
  Strategy strategy;
  double device_bytes = 0.0;  ///< peak, per rank
  double host_bytes = 0.0;    ///< per rank
  double disk_bytes = 0.0;    ///< per rank

  int layers() const { return strategy.layers; }
  /// Identifies the point: times and bytes follow from it.
  auto key() const { return std::tie(layout, strategy); }
  StageTimes& times() { return *this; }
};

/// Points of these strategies, without times and bytes.
std::vector<Point> points_of(int layout, std::span<const Strategy> strategies);

/// Memory that a stage may use.
struct Limits {
  double device_bytes;
  double node_host_bytes;
  double rank_disk_bytes;  ///< an equal share of its node's disk

  bool operator==(const Limits&) const = default;
  bool lack_host(const Point& point, const Layout& mesh) const {
    return point.host_bytes * mesh.devices_per_node > node_host_bytes;
  }
  bool hold(const Point& point, const Layout& mesh) const {
    return point.device_bytes <= device_bytes && !lack_host(point, mesh) &&
           point.disk_bytes <= rank_disk_bytes;
  }
};

/// Drops dominated points: another one is no slower in a middle microbatch, alone with its update
/// and in its shortest trip, in which the objective (pipeline.hpp) does not fall, and, where it
/// matters, needs no more host memory. @return by rising stable time
std::vector<Point> pareto_front(std::vector<Point> points, bool host_matters);
/// True if no time is less than that of some other point.
bool is_beaten(const StageTimes& times, std::span<const Point> others);

}  // namespace brume::tuner
