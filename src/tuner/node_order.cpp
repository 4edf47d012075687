#include "node_order.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.hpp"
#include "price/price.hpp"

namespace brume::tuner {
namespace {

constexpr int most_exact = 8, most_ordered = 512;  ///< nodes
constexpr double clearly = 1.0 - 1e-9;             ///< less: sums are rounded

NodeOrders::Order as_given(std::size_t nodes) {
  NodeOrders::Order order(nodes);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

}  // namespace

NodeOrders::NodeOrders(const hardware::Profile& profile, int nodes,
                       const std::vector<schedule::NodeTraffic>& traffic)
    : nodes_(std::size_t(nodes)), times_(nodes_ * nodes_, 1.0), at_(nodes_) {
  for (const hardware::SlowPair& pair : profile.slow_pairs) {
    if (pair.first >= nodes || pair.second >= nodes) continue;
    double &there = times(pair.first, pair.second), &back = times(pair.second, pair.first);
    there = back = std::max(there, pair.times);
  }
  for (const schedule::NodeTraffic& one : traffic) {
    if (one.places.size() == nodes_) continue;
    for (const int place : one.places) at_[place].push_back(traffic_.size());
    traffic_.push_back(one);
  }
}

double NodeOrders::seconds(const schedule::NodeTraffic& one, const Order& order) const {
  double slowest = 1.0;
  for (std::size_t i = 0; i < one.places.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      slowest = std::max(slowest, times(order[one.places[i]], order[one.places[j]]));
  return slowest * one.seconds;
}

double NodeOrders::seconds(const Order& order) const {
  double sum_s = 0.0;
  for (const schedule::NodeTraffic& one : traffic_) sum_s += seconds(one, order);
  return sum_s;
}

/// Seconds of the traffic that two places take part in.
double NodeOrders::seconds_at(int a, int b, const Order& order) const {
  double sum_s = 0.0;
  for (const std::size_t i : at_[a]) sum_s += seconds(traffic_[i], order);
  for (const std::size_t i : at_[b])
    if (!std::ranges::binary_search(traffic_[i].places, a)) sum_s += seconds(traffic_[i], order);
  return sum_s;
}

NodeOrders::Order NodeOrders::exact() const {
  Order order = as_given(nodes_), best = order;
  double least_s = seconds(order);
  while (std::ranges::next_permutation(order).found)
    if (const double order_s = seconds(order); order_s < least_s * clearly) {
      least_s = order_s;
      best = order;
    }
  return best;
}

NodeOrders::Order NodeOrders::greedy() const {
  Order order = as_given(nodes_);
  for (std::size_t place = 0; place < nodes_; ++place) {
    const auto added_s = [&] {
      double sum_s = 0.0;
      for (const std::size_t i : at_[place])
        if (traffic_[i].places.back() == int(place)) sum_s += seconds(traffic_[i], order);
      return sum_s;
    };
    double least_s = added_s();
    std::size_t best = place;
    for (std::size_t other = place + 1; other < nodes_; ++other) {
      std::swap(order[place], order[other]);
      if (const double other_s = added_s(); other_s < least_s * clearly)
        least_s = other_s, best = other;
      std::swap(order[place], order[other]);
    }
    std::swap(order[place], order[best]);
  }
  return order;
}

NodeOrders::Order NodeOrders::near(const Deadline& deadline) const {
  Order order = as_given(nodes_);
  if (Order other = greedy(); seconds(other) < seconds(order) * clearly) order = std::move(other);
  for (bool helps = true; helps;) {
    helps = false;
    for (int a = 0; a < int(nodes_); ++a)
      for (int b = a + 1; b < int(nodes_); ++b) {
        deadline.check();
        const double before_s = seconds_at(a, b, order);
        std::swap(order[a], order[b]);
        if (seconds_at(a, b, order) < before_s * clearly)
          helps = true;
        else
          std::swap(order[a], order[b]);
      }
  }
  return order;
}

double least_times(const Layout& layout, const hardware::Cluster& cluster,
                   const hardware::Machine& machine) {
  // Groups of tp over nodes are on some of them only.
  if (cluster.num_groups() > 1 || layout.nodes < cluster.nodes() ||
      layout.tp * layout.cp > layout.devices_per_node)
    return 1.0;
  return price::times_as_long(machine.profile(0), as_given(std::size_t(cluster.nodes())));
}

hardware::Machine before_nodes(const hardware::Machine& machine, const hardware::Cluster& cluster) {
  if (cluster.num_groups() > 1 || machine.profile(0).slow_pairs.empty()) return machine;
  hardware::Profile profile = machine.profile(0);
  const int nodes = cluster.nodes();
  const double times = price::times_as_long(profile, as_given(std::size_t(nodes)));
  profile.slow_pairs = {{0, nodes - 1, times}};
  return profile;
}

plan::Plan on_best_nodes(plan::Plan plan, const model::Config& model,
                         const hardware::Cluster& cluster, const hardware::Machine& machine,
                         int threads, const Deadline& deadline) {
  const hardware::Profile& profile = machine.profile(0);
  const hardware::NodeGroup& group = cluster.groups[0];
  const int nodes = group.nodes;
  // Prices of levels take nodes in their order.
  if (cluster.num_groups() > 1 || profile.slow_pairs.empty() || !profile.levels.empty() ||
      nodes > most_ordered || profile.key.ranks_per_node != group.devices_per_node)
    return plan;
  try {
    const NodeOrders orders(profile, nodes,
                            schedule::node_traffic(plan, model, machine, threads, deadline));
    NodeOrders::Order best = nodes <= most_exact ? orders.exact() : orders.near(deadline);
    if (!std::ranges::is_sorted(best)) plan.node_order = std::move(best);
  } catch (const OutOfTime&) {
  }
  return plan;
}

}  // namespace brume::tuner
