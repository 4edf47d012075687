/// @file The inter-stage problem: one point for each stage so that layers add up and an iteration
/// is short.
#pragma once

#include <limits>
#include <optional>
#include <vector>

#include "grid.hpp"

namespace brume::tuner {

struct Pipeline {
  int num_layers = 0;
  int microbatches = 1;
  std::vector<std::vector<Point>> points;  ///< [stage]
  int stages_per_node = 1;
  int ranks_on_node = 1;  ///< of one stage, on each of its nodes
  double host_limit_bytes = 0.0;
  bool host_matters = false;  ///< stages of a node together may exceed the limit

  int num_stages() const { return int(points.size()); }
};

/// One point of each stage.
struct Choice {
  std::vector<Point> stages;
  double iteration_s = std::numeric_limits<double>::infinity();
};

struct Solution {
  std::optional<Choice> best;
  double bound_s = std::numeric_limits<double>::infinity();  ///< no choice is faster
};

/// [s], by the analyzer's formula.
double iteration_time(const std::vector<Point>& stages, int microbatches);

bool fits_host(const Pipeline& pipeline, const std::vector<Point>& stages);

/// Dynamic program over (stage, layers used) under each threshold of the slowest stage: exact but
/// for the deltas of later stages and for host memory, so it gives a bound and usually the best
/// choice.
Solution relax(const Pipeline& pipeline);

/// The choice whose fullest device needs least; empty when layers cannot add up.
std::vector<Point> emptiest(const Pipeline& pipeline);

/// Leaves out points that no choice faster than `cutoff_s` can contain.
void prune(Pipeline& pipeline, double cutoff_s);

/// The mixed-integer program, by GLPK. An abort of GLPK costs this solve only.
///
/// @param known  a choice to beat; it is returned when nothing is faster
/// @param solves  counts calls of the solver
Solution solve_milp(const Pipeline& pipeline, const Solution& known, double time_limit_s,
                    int& solves);

}  // namespace brume::tuner
