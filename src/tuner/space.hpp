/// @file The outer loops of the search: what all stages of a plan share.
#pragma once

#include <vector>

#include "tuner/tuner.hpp"

namespace brume::tuner {

/// One way to cut devices and batch: equal meshes, one dp, tp and microbatch for all stages.
struct Shape {
  int num_stages = 1;
  int dp = 1;
  int tp = 1;
  int microbatch = 1;
  int microbatches = 1;
  int nodes = 1;  ///< of a stage's mesh
  int devices_per_node = 1;

  /// Earlier microbatches in flight on a stage.
  int in_flight(int stage) const;
};

/// All shapes the search lists allow and the model and cluster can take.
std::vector<Shape> shapes(const model::Config& model, int global_batch,
                          const hardware::Cluster& cluster, const deck::SearchKeys& search);

}  // namespace brume::tuner
