/// @file The inter-stage problem: one point for each stage, so that layers and devices add up and
/// an iteration is short.
///
/// Its objective is a bound that follows from what each stage has to do. With t_i the stable time
/// of stage i, w_i its first forward and last backward until their messages leave, without what it
/// can recompute before a gradient is there, r_i the same of the microbatch that is fastest there,
/// m_i the stream's way between stages i and i + 1, p_i the stage's microbatches in flight, and R_i
/// = sum_{j>i} (2 m_{j-1} + r_j) the round trip through the stages after it, an iteration takes at
/// least
///
///   max_i [ sum_{j<i} (w_j + 2 m_j) + max((G - 1) t_i + w_i + max(0, I_i - p_i t_i),
///                                         (ceil(G / (p_i + 1)) - 1) (r_i + R_i) + w_i + R_i,
///                                         n_i (r_i + 2 m_i + r_{i+1}) + p_{i+1} r_i) ]
///
///   I_i = max(R_i, 2 R_i + r_i - t_i) where p_i + 1 < G, else R_i
///
/// because stage i waits for the stages before it to fill, and they for it to drain; meanwhile it
/// works on G microbatches. While the first one goes through the later stages and back, it has p_i
/// forwards to do, and p_i backwards while the last one does: together p_i t_i for two round trips,
/// but for a forward's part after its message, which t_i - r_i is no less than. After p_i + 1
/// forwards it waits for a round trip; and forward f of stage i comes before forward f of stage
/// i + 1, that before its backward f - p_{i+1}, that before the backward here, and that before
/// forward f + c with c = p_i - p_{i+1} + 1, which makes n_i = ceil((G - p_{i+1}) / c) turns from
/// forward p_{i+1} on. Nor is it shorter than what the last stage works on all microbatches but
/// one and the gradient of a tied table takes home, for that leaves after the last one's head.
///
/// If a stage's layers are cut into v chunks, others wait for its first chunk only, so w_j of
/// the first sum is divided by v, and messages pass between two stages v times each way. What is
/// said of p_i does not hold then; an iteration takes at least
///
///   max_i [ sum_{j<i} (w_j / v + 2 m_j) + max((G - 1) t_i + w_i, v G m_i, w_i + R_i) ]
///
/// with v m_j in the place of m_j in R_i. Where backwards are in two parts it is the same with a
/// third of w_j, run ahead a quarter (plan::Order::fill_share), and v = 1 elsewhere.
#pragma once

#include <span>
#include <vector>

#include "base/deadline.hpp"
#include "hardware/cluster.hpp"
#include "messages.hpp"
#include "numbers.hpp"
#include "point.hpp"
#include "prices.hpp"

namespace brume::tuner {

/// Points that a stage may take, all of one layout and number of layers.
struct Cell {
  int layout;
  int layers;
  std::span<const Point> points;
};

struct Pipeline {
  const PipelineConfig& config;
  const MessageTable& messages;
  int num_layers = 0;
  const hardware::Cluster& cluster;
  const Deadline& deadline;
  bool host_matters = false;             ///< a node's stages share its host memory
  std::vector<std::vector<Cell>> cells;  ///< [stages after]

  const Layout& layout(const Cell& cell) const { return config.layouts[cell.layout]; }
  const Layout& layout(const Point& p) const { return config.layouts[p.layout]; }
};

/// One point of each stage, first stage first, and its bound.
struct Assignment {
  std::vector<Point> stages;
  double least_s = infinity;
};

/// Least number of trips through this and the later stages and back, if each trip waits for the one
/// before it.
int trips(const PipelineConfig& config, int after);

/// The turns that a stage of 1F1B and the next one take.
struct Turns {
  Turns(const PipelineConfig& config, int after);

  int later_flight;  ///< microbatches in flight in the next stage
  int count;
};

/// The objective of an assignment [s].
double least_s(const Pipeline& pipeline, const std::vector<Point>& stages);

/// Each group's devices stand in the order of stages; a node's stages together must not exceed its
/// host memory.
bool fits_host(const Pipeline& pipeline, const std::vector<Point>& stages);

/// Result of the dynamic program under a cutoff.
struct Assignments {
  double bound_s = infinity;     ///< proven: no assignment takes less; at most the cutoff
  std::vector<Assignment> best;  ///< sorted by bound; equal ones once
  bool merged = false;  ///< labels were merged: assignments may take longer than their bound, and
                        ///< may need more host memory than there is
};

/// Dynamic program over (stages after, devices used of each group, layers used), from the last
/// stage on, with labels that do not beat each other: in round trip, bound, what messages to the
/// next stage take, and host bytes on each group's current node. Prices bound what is left to
/// place.
///
/// @param thresholds_s  [stages after] stable times above it are not looked at
/// @param most_labels   of a state; more are merged into one that is at least as good as both
/// @throws OutOfTime    when the pipeline's deadline passes
Assignments best_assignments(const Pipeline& pipeline, const std::vector<double>& thresholds_s,
                             double cutoff_s, const Prices& prices, std::size_t most_labels);

/// The least objective of the mixed-integer program, by GLPK: -infinity where it does not get
/// there. Meshes may straddle nodes in it, so it bounds from below. An abort of GLPK costs this
/// solve only.
double milp_bound_s(const Pipeline& pipeline, double time_limit_s);

}  // namespace brume::tuner
