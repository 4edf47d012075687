/// @file Intra-stage search: which strategies of a stage may be part of a fastest plan.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "rows.hpp"

namespace brume::tuner {

/// Pareto fronts of the stages of configurations that differ in their number of stages only,
/// computed when asked for and kept.
///
/// Time rises with most ratios, so a strategy that fits hides those that save more: the search
/// begins with the smallest ratios and stops where a stage fits with all layers stored, or is too
/// slow, unless a next ratio is seen to take less time. Shares on disk save host memory only: the
/// search raises them where host memory is short, or counts.
class Fronts {
 public:
  /// The arguments must outlive the object.
  Fronts(const Axes& axes, AllRows& rows)
      : axes_(axes), in_memory_(axes.in_memory()), rows_(rows) {}

  /// Positions of one class have the same fronts.
  using Class = std::tuple<bool, bool, MemoryKey, int>;  ///< first, last, memory, layout
  static Class class_of(const StagePosition& position);

  /// Computes what is missing among [least, most] layers of strategies whose stable time is at most
  /// `threshold_s`; some slower ones may be there, too. Threads may prepare positions of different
  /// classes at the same time.
  void prepare(Grid& grid, const StagePosition& position, int least_layers, int most_layers,
               double threshold_s);

  /// Valid until strategies are excluded. Prepared before.
  const std::vector<Point>& front(const StagePosition& position, int layers) const;

  /// The fastest time of each number of layers 1..L were memory no matter: one point each, of
  /// least stable and whole time. No strategy is faster.
  const std::vector<Point>& unlimited(Grid& grid, const StagePosition& position);

  /// Excludes a strategy from the fronts of stages as far from the end.
  void exclude(const StagePosition& position, const Strategy& strategy);

  /// Counts host bytes in the fronts from now on, because a node's stages share its host memory.
  void count_host();

  std::int64_t strategies() const { return strategies_; }
  std::int64_t feasible() const { return feasible_; }

 private:
  using Key = std::pair<Class, int>;  ///< and layers

  static Key key(const StagePosition& position, int layers) { return {class_of(position), layers}; }
  const Axes& axes(const StagePosition& position) const {
    return position.mesh().disk ? axes_ : in_memory_;
  }
  bool excluded(const StagePosition& position, const Strategy& strategy) const;
  std::vector<Step> steps(const StagePosition& position, const Strategy& from) const;
  using Found = std::map<int, std::vector<Point>>;  ///< points that fit, by layers
  Found search(Grid& grid, const StagePosition& position, const std::vector<int>& layers,
               double threshold_s);
  std::vector<Strategy> drop_slow(Grid& grid, const StagePosition& position,
                                  std::vector<Strategy>& rows, double threshold_s,
                                  const Found& found) const;
  std::vector<Point> everything(Grid& grid, const StagePosition& position, int layers);

  const Axes& axes_;
  Axes in_memory_;  ///< axes without a disk
  AllRows& rows_;
  bool host_matters_ = false;
  std::mutex mutex_;  ///< while fronts are prepared
  std::map<Key, std::vector<Point>> fronts_;
  std::map<std::tuple<bool, bool, int>, std::vector<Point>> unlimited_;  ///< [first, last, layout]
  std::map<Key, double> threshold_s_;  ///< a front is complete up to this time
  std::map<Key, std::vector<Strategy>> excluded_;
  std::atomic<std::int64_t> strategies_ = 0, feasible_ = 0;
};

}  // namespace brume::tuner
