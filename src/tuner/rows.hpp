/// @file Rows that searches share: strategies of a stage that differ in recomputed and stored
/// layers only.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <tuple>
#include <vector>

#include "analyzer/analyzer.hpp"
#include "point.hpp"
#include "row_search.hpp"
#include "times.hpp"

namespace brume::tuner {

/// Rows of positions of one class. Each is searched once, whichever search asks first. For all
/// threads.
class Rows {
 public:
  Rows(const Limits& limits, Times& times, const Axes& axes, bool host_matters)
      : limits_(limits), times_(times), axes_(axes), host_matters_(host_matters) {}

  // The grid is the caller's, and may be out of time.

  /// Finds what fits of each row. Rows stand at their least level.
  std::vector<Fit> fits(Grid& grid, const StagePosition& position, std::span<const Strategy> rows);
  /// The steps that make a stage faster, or, unless to the disk, need less of the host memory that
  /// it lacks.
  std::vector<Step> that_gain(Grid& grid, const StagePosition& position,
                              std::span<const Step> steps);

 private:
  /// A point of a row, of which there are millions: its strategy is the row's but for the level.
  struct Kept {
    StageTimes times;
    double device_bytes, host_bytes, disk_bytes;
    int level;
  };
  struct Row {
    Savings savings;
    std::uint32_t begin = 0, end = 0;  ///< range of points_
  };

  std::vector<Row> search(Grid& grid, const StagePosition& position,
                          std::span<const Strategy> rows);
  std::vector<bool> gain(Grid& grid, const StagePosition& position, std::span<const Step> steps);

  Limits limits_;
  Times& times_;
  Axes axes_;
  bool host_matters_;
  std::mutex mutex_;
  Memo<Row> rows_;  ///< key: Strategy::row()
  std::deque<Kept> points_;
  Memo<bool> gains_;  ///< key: Step::target()
};

/// The rows of all positions, for searches of one model on one machine.
class AllRows {
 public:
  explicit AllRows(const hardware::Cluster& cluster) { limit(cluster); }

  /// Forgets the rows of other memory limits, but no times.
  void limit(const hardware::Cluster& cluster);

  Rows& of(const StagePosition& position, const Axes& axes, bool host_matters);
  Times& times(const StagePosition& position);
  RowTimes& row_times(const StagePosition& position, const Axes& axes);
  const Limits& limits(int group) const { return limits_[group]; }

 private:
  /// Role, layout, microbatches, run-ahead, memory; whether layers may be recomputed, and stored,
  /// and a node's stages share its host memory.
  using Key = std::tuple<analyzer::StageRole, Layout, int, int, MemoryKey, bool, bool, bool>;

  std::vector<Limits> limits_;  ///< [group]
  std::mutex mutex_;
  /// Key: role, layout, microbatches, whether there are other stages.
  std::map<std::tuple<analyzer::StageRole, Layout, int, bool>, Times> times_;
  /// The same, and whether layers may be recomputed, and stored.
  std::map<std::tuple<analyzer::StageRole, Layout, int, bool, bool, bool>, RowTimes> row_times_;
  std::map<Key, std::unique_ptr<Rows>> rows_;
};

}  // namespace brume::tuner
