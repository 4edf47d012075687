/// @file The outer loops of a search by Mist's counting.
#pragma once

#include <vector>

#include "mist/tuner.hpp"

namespace brume::mist {

/// What all stages of a plan share.
struct Shape {
  Case mist;    ///< without stages
  Stage stage;  ///< mesh, microbatch, dp, tp and times of a layer
  int num_stages = 1;
  int num_layers = 1;
  int least_layers = 1, most_layers = 1;  ///< of a stage
  double compute_s = 0.0;                 ///< least that all stages take for one microbatch
  double bound_s = 0.0;                   ///< no plan of this shape is faster
};

/// All shapes of the space that devices, batch and measured times allow, by their bounds.
std::vector<Shape> find_shapes(const Job& job, const Space& space);

}  // namespace brume::mist
