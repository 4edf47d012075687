/// @file Order of nodes in which slow links carry least.
#pragma once

#include <cstddef>
#include <vector>

#include "base/deadline.hpp"
#include "hardware/cluster.hpp"
#include "hardware/machine.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "schedule/node_traffic.hpp"
#include "space.hpp"

namespace brume::tuner {

/// Costs of orders of nodes, and the best order.
class NodeOrders {
 public:
  /// @param profile  whose slow pairs count
  NodeOrders(const hardware::Profile& profile, int nodes,
             const std::vector<schedule::NodeTraffic>& traffic);

  using Order = std::vector<int>;  ///< [place] node

  /// Seconds of an iteration's transfers between nodes: those among some places take as long as
  /// their slowest pair lets them. What is among all nodes takes the same in any order, and is left
  /// out.
  double seconds(const Order& order) const;

  /// The first of all orders that takes least.
  Order exact() const;

  /// Place by place the node that adds least, or the given order where that takes less; then nodes
  /// change places as long as that helps. @throws OutOfTime when the deadline passes
  Order near(const Deadline& deadline = {}) const;

 private:
  double& times(int a, int b) { return times_[std::size_t(a) * nodes_ + std::size_t(b)]; }
  double times(int a, int b) const { return times_[std::size_t(a) * nodes_ + std::size_t(b)]; }
  double seconds(const schedule::NodeTraffic& one, const Order& order) const;
  double seconds_at(int a, int b, const Order& order) const;
  Order greedy() const;

  std::size_t nodes_;
  std::vector<double> times_;  ///< [node, node] slowdown against most node pairs
  std::vector<schedule::NodeTraffic> traffic_;
  std::vector<std::vector<std::size_t>> at_;  ///< [place] the traffic that it takes part in
};

// Before plans lie on nodes only what takes all of these meets a slow pair for sure, the slowest
// one.

/// How many times as long as between most nodes the collectives of a stage take at least.
double least_times(const Layout& layout, const hardware::Cluster& cluster,
                   const hardware::Machine& machine);
/// The machine for predictions of plans that lie on no nodes yet: the slowest pair stands between
/// the first and the last node.
hardware::Machine before_nodes(const hardware::Machine& machine, const hardware::Cluster& cluster);

/// The plan with the order of nodes that takes least by `NodeOrders`: of up to 8 nodes exactly. As
/// it is where no order is better, or the deadline passes.
plan::Plan on_best_nodes(plan::Plan plan, const model::Config& model,
                         const hardware::Cluster& cluster, const hardware::Machine& machine,
                         int threads = 1, const Deadline& deadline = {});

}  // namespace brume::tuner
