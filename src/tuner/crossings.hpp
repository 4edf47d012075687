/// @file What messages between groups add to a stage's stable time.
#pragma once

#include <vector>

#include "pipeline.hpp"

namespace brume::tuner {

/// Seconds that a stage's messages take longer than between stages of one group, by its layout and
/// its neighbours' groups; below 0 where a link is faster than the group's own.
class Crossings {
 public:
  Crossings(const Grid& grid, const Frame& frame);

  double added_s(int layout, int before, int after) const;
  /// The least of all neighbours that a stage with so many after it may have.
  double least_s(int layout, int stages_after) const;

  /// Adds cells of these points for all neighbours; those that cost more get points of their own.
  void add_cells(Pipeline& pipeline, int layout, int stages_after, int layers,
                 const std::vector<Point>& points) const;

 private:
  // Groups that may stand beside a stage; its own where nobody does.
  std::vector<int> before(int layout, int stages_after) const;
  std::vector<int> after(int layout, int stages_after) const;
  std::vector<int> groups(int layout, bool at_end) const;

  const Frame& frame_;
  int num_groups_;
  std::vector<double> added_s_;  ///< [layout, before, after], or none where there is one group
};

}  // namespace brume::tuner
