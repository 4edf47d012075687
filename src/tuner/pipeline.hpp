/// @file The inter-stage problem: one point for each stage, so that layers and devices add up and
/// an iteration is short.
#pragma once

#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "grid.hpp"
#include "numbers.hpp"
#include "prices.hpp"

namespace brume::tuner {

/// Points that a stage may take, all of one layout and number of layers, between neighbours of
/// these groups.
struct Cell {
  int layout;
  int layers;
  std::span<const Point> points;
  int before = 0, after = 0;  ///< the own group where there is no neighbour
};

struct Pipeline {
  const Frame& frame;
  int num_layers = 0;
  const hardware::Cluster& cluster;
  const Deadline& deadline;
  bool host_matters = false;             ///< a node's stages share its host memory
  bool neighbours_matter = false;        ///< else cells are for any neighbours
  std::vector<std::vector<Cell>> cells;  ///< [stages after]
  std::deque<std::vector<Point>> own;    ///< points made for this pipeline

  const Layout& layout(const Cell& cell) const { return frame.layouts[std::size_t(cell.layout)]; }
  const Layout& layout(const Point& p) const { return frame.layouts[std::size_t(p.layout)]; }
};

/// One point of each stage, first stage first.
struct Choice {
  std::vector<Point> stages;
  double iteration_s = infinity;
};

/// [s], by the analyzer's formula.
double iteration_time(const std::vector<Point>& stages, int microbatches);

/// Each group's devices stand in the order of stages; a node's stages together must not exceed its
/// host memory.
bool fits_host(const Pipeline& pipeline, const std::vector<Point>& stages);

/// Least max_i (whole_i + sum_{j>i} t_j) over choices whose stages take at most `threshold_s` each.
struct Least {
  double sum_s = infinity;    ///< proven lower bound; at most `cutoff_s`
  std::vector<Point> stages;  ///< a choice; empty when none is below the cutoff
  bool merged = false;        ///< labels were merged: the choice may be slower than the bound, and
                              ///< may need more host memory than there is
};

/// Dynamic program over (stages after, devices used of each group, layers used, and where
/// neighbours matter the groups of the next stage and of the one after it), from the last stage on,
/// with labels (sum of t, max of whole + later t, host bytes on each group's current node) that do
/// not beat each other. Prices bound what is left to place.
///
/// @param most_labels  of a state; more are merged into one that is at least as good as both
/// @throws OutOfTime   when the pipeline's deadline passes
Least least_sum(const Pipeline& pipeline, double threshold_s, double cutoff_s, const Prices& prices,
                std::size_t most_labels);

/// What GLPK says of a pipeline.
struct Proof {
  std::optional<Choice> better;  ///< than the one known
  double bound_s = -infinity;    ///< no choice is faster
};

/// The mixed-integer program, by GLPK. Meshes may straddle nodes in it, so it bounds from below;
/// only a choice that does not is returned. An abort of GLPK costs this solve only.
Proof solve_milp(const Pipeline& pipeline, double known_s, double time_limit_s);

}  // namespace brume::tuner
