/// @file Traffic of a step between the nodes of a cluster of one group.
#pragma once

#include <vector>

#include "base/deadline.hpp"
#include "hardware/machine.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace brume::schedule {

/// Transfers that take the links between some nodes.
struct NodeTraffic {
  std::vector<int> places;  ///< two or more positions, rising (plan::node_at)
  double seconds = 0.0;     ///< [s] an iteration, were no pair of nodes slow
};

/// The messages and collectives between nodes of the first rank of each stage on each of its nodes,
/// those between the same nodes together, in the order of their places.
/// @throws OutOfTime when the deadline passes
std::vector<NodeTraffic> node_traffic(const plan::Plan& plan, const model::Config& model,
                                      const hardware::Machine& machine, int threads = 1,
                                      const Deadline& deadline = {});

}  // namespace brume::schedule
