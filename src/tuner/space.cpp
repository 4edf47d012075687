#include "space.hpp"

#include <algorithm>

namespace brume::tuner {
namespace {

constexpr int largest_microbatch = 32;

/// Whether a list of the deck allows a value; an empty list allows all.
bool allows(const std::vector<int>& list, int value) {
  return list.empty() || std::ranges::find(list, value) != list.end();
}

std::vector<int> divisors(int number) {
  std::vector<int> found;
  for (int d = 1; d <= number; ++d)
    if (number % d == 0) found.push_back(d);
  return found;
}

/// Puts a stage of so many devices within a node or on whole nodes. @return whether that is
/// possible
bool lay_out(Shape& shape, const hardware::Cluster& cluster) {
  const int devices = shape.dp * shape.tp, per_node = cluster.devices_per_node;
  shape.nodes = std::max(1, devices / per_node);
  shape.devices_per_node = devices / shape.nodes;
  const bool within = devices <= per_node && (cluster.nodes == 1 || per_node % devices == 0);
  const bool whole = devices > per_node && devices % per_node == 0;
  return (within || whole) && shape.devices_per_node % shape.tp == 0;
}

}  // namespace

int Shape::in_flight(int stage) const { return std::min(num_stages - 1 - stage, microbatches - 1); }

std::vector<Shape> shapes(const model::Config& model, int global_batch,
                          const hardware::Cluster& cluster, const deck::SearchKeys& search) {
  std::vector<Shape> found;
  for (int num_stages : divisors(cluster.devices())) {
    if (!allows(search.stages, num_stages) || num_stages > model.num_layers) continue;
    const int devices = cluster.devices() / num_stages;
    for (int tp : divisors(devices)) {
      Shape shape{.num_stages = num_stages, .dp = devices / tp, .tp = tp};
      if (!allows(search.tp, tp) || !allows(search.dp, shape.dp)) continue;
      if (model.num_heads % tp != 0 || model.ffn_size % tp != 0) continue;
      if (!lay_out(shape, cluster) || global_batch % shape.dp != 0) continue;
      const int sequences = global_batch / shape.dp;  // of one data-parallel rank, an iteration
      for (int b : divisors(sequences)) {
        if (!allows(search.microbatch, b)) continue;
        if (search.microbatch.empty() && b > largest_microbatch) continue;
        shape.microbatch = b;
        shape.microbatches = sequences / b;
        found.push_back(shape);
      }
    }
  }
  return found;
}

}  // namespace brume::tuner
