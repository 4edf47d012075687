/// @file The outer loops of the search: what all stages of a plan share, and where a stage may run.
#pragma once

#include <vector>

#include "tuner/tuner.hpp"

namespace brume::tuner {

/// Where a stage runs and how it is split.
struct Layout {
  int group = 0;
  int nodes = 1;  ///< mesh: within a node, or whole nodes
  int devices_per_node = 1;
  int microbatch = 1;
  int dp = 1;
  int tp = 1;
  bool disk = false;         ///< its nodes have one that a search may use
  bool host_update = false;  ///< the search may let their processors step
  double times = 1.0;        ///< as analyzer::StageRole has it, in any order of the nodes

  int devices() const { return nodes * devices_per_node; }
  auto operator<=>(const Layout&) const = default;
};

/// Stages and microbatches of a plan, and the layouts its stages choose from; b dp G = B in each.
struct Frame {
  int num_stages = 1;
  int microbatches = 1;
  int run_ahead = 1;
  std::vector<Layout> layouts;

  /// Earlier microbatches in flight on a stage with so many stages after it.
  int in_flight(int after) const;
};

/// All frames the search lists allow and the model and cluster can take. Stages of one layout each,
/// or, with `search.unequal_stages` or several groups, all layouts of a number of microbatches
/// together.
std::vector<Frame> frames(const model::Config& model, int global_batch,
                          const hardware::Cluster& cluster, const deck::SearchKeys& search);

/// Whether a mesh may begin at this device: within a node, or at a node's first device.
bool may_begin(int first_device, int devices, int devices_per_node);

}  // namespace brume::tuner
