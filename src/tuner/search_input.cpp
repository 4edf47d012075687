#include "search_input.hpp"

#include <utility>

#include "point.hpp"

namespace brume::tuner {

std::vector<PipelineConfig> configs(const SearchInput& input) {
  return configs(input.model, input.global_batch, input.cluster, input.keys);
}

plan::Plan plan_of(const SearchInput& input, const PipelineConfig& config,
                   const std::vector<Point>& stages) {
  plan::Plan plan{.global_batch = input.global_batch,
                  .microbatches = config.microbatches,
                  .order = config.order,
                  .stages = {}};
  int first_layer = 0;
  const int chunks = config.order.chunks;
  for (int chunk = 0; chunk < chunks; ++chunk)
    for (const Point& point : stages) {
      // The embedding's chunk is the smallest one if there are not layers for all.
      const bool reversed = &point == &stages.front() && point.layers() < chunks;
      const Layout& mesh = config.layouts[point.layout];
      const std::string& group = input.cluster.groups[mesh.group].name;
      plan::Stage& stage = plan.stages.emplace_back(stage_of(mesh, group));
      stage.first_layer = first_layer;
      point.strategy.of_chunk(chunk, chunks, reversed).apply_to(stage);
      first_layer += stage.layers;
    }
  return input.conform ? input.conform(std::move(plan)) : plan;
}

}  // namespace brume::tuner
