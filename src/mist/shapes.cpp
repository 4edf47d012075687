#include "shapes.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.hpp"
#include "base/numbers.hpp"

namespace brume::mist {
namespace {

std::vector<int> powers_of_two(int batch) {
  std::vector<int> all;
  for (int g = 1; batch % g == 0; g *= 2) all.push_back(g);
  return all;
}

/// Equal parts of the machine: whole nodes, or equal parts of a node.
std::optional<std::pair<int, int>> mesh(const Job& job, int num_stages) {
  if (num_stages <= job.nodes && job.nodes % num_stages == 0)
    return std::pair{job.nodes / num_stages, job.ranks_per_node};
  if (num_stages % job.nodes != 0 || job.ranks_per_node % (num_stages / job.nodes) != 0) return {};
  return std::pair{1, job.ranks_per_node / (num_stages / job.nodes)};
}

double seconds(const LayerTime& time, int microbatches) {
  return time.forward_s + time.backward_s + time.accumulate_s * (microbatches - 1) / microbatches;
}

/// Computation alone: what runs beside it can only slow it down, but for slowdowns below 1.
void bound(Shape& shape) {
  const Case& mist = shape.mist;
  const double least = std::min(1.0, *std::ranges::min_element(mist.hardware.slowdowns));
  const double layer_s = least * seconds(shape.stage.block, mist.microbatches);
  const double ends_s =
      least * (seconds(mist.embedding, mist.microbatches) + seconds(mist.head, mist.microbatches));
  shape.compute_s = shape.num_layers * layer_s + ends_s;
  const int most = (shape.num_layers + shape.num_stages - 1) / shape.num_stages;
  const double slowest_s = std::max(shape.compute_s / shape.num_stages, most * layer_s);
  shape.bound_s = shape.compute_s + (mist.microbatches - 1) * slowest_s;
}

bool set_times(const Job& job, Shape& shape) {
  const auto block =
      job.time(Layer::block, shape.stage.strategy.microbatch, shape.stage.strategy.tp);
  const Strategy& ends = shape.mist.ends;
  const auto embedding = job.time(Layer::embedding, ends.microbatch, ends.tp);
  const auto head = job.time(Layer::head, ends.microbatch, ends.tp);
  if (!block || !embedding || !head) return false;
  shape.stage.block = *block;
  shape.mist.embedding = *embedding;
  shape.mist.head = *head;
  return true;
}

/// With one microbatch Mist cuts layers evenly.
void set_layers(const Space& space, Shape& shape) {
  const int mean = int(std::nearbyint(double(shape.num_layers) / shape.num_stages));
  const int around = shape.mist.microbatches == 1 ? 0 : space.uneven_layers;
  shape.least_layers = std::max(1, mean - around);
  shape.most_layers = std::min(shape.num_layers - shape.num_stages + 1, mean + around);
}

std::optional<Shape> shape_of(const Job& job, const Space& space, int num_stages, int microbatches,
                              int tp) {
  const auto cut = mesh(job, num_stages);
  if (!cut || cut->second % tp != 0 || int(job.model.heads) % tp != 0) return {};
  if (num_stages > job.num_layers || num_stages > microbatches) return {};
  const int devices = cut->first * cut->second;
  const int dp = devices / tp;
  if (job.global_batch % (microbatches * dp) != 0) return {};
  const int microbatch = job.global_batch / (microbatches * dp);
  if (std::ranges::count(space.microbatch, microbatch) == 0) return {};
  if (!space.dp.empty() && std::ranges::count(space.dp, dp) == 0) return {};
  Shape shape;
  shape.num_stages = num_stages;
  shape.num_layers = job.num_layers;
  shape.mist.model = job.model;
  shape.mist.hardware = job.hardware;
  shape.mist.microbatches = microbatches;
  shape.stage.nodes = cut->first;
  shape.stage.ranks_per_node = cut->second;
  shape.stage.strategy.microbatch = microbatch;
  shape.stage.strategy.dp = dp;
  shape.stage.strategy.tp = tp;
  shape.mist.ends = shape.stage.strategy;
  if (space.ends_data_parallel) {
    shape.mist.ends.dp = devices;
    shape.mist.ends.tp = 1;
    shape.mist.ends.microbatch = microbatch / tp;  // as Mist: may be 0
  }
  if (!set_times(job, shape)) return {};
  set_layers(space, shape);
  bound(shape);
  return shape;
}

}  // namespace

std::vector<Shape> find_shapes(const Job& job, const Space& space) {
  const auto all_or = [](const std::vector<int>& some, std::vector<int> all) {
    return some.empty() ? std::move(all) : some;
  };
  std::vector<Shape> shapes;
  for (const int num_stages : all_or(space.stages, divisors(job.nodes * job.ranks_per_node)))
    for (const int microbatches : all_or(space.microbatches, powers_of_two(job.global_batch)))
      for (const int tp : space.tp)
        if (auto shape = shape_of(job, space, num_stages, microbatches, tp))
          shapes.push_back(std::move(*shape));
  std::ranges::stable_sort(shapes, {}, &Shape::bound_s);
  return shapes;
}

}  // namespace brume::mist
