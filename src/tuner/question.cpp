#include "question.hpp"

#include <utility>

#include "point.hpp"

namespace brume::tuner {

std::vector<Frame> frames(const Question& question) {
  return frames(question.model, question.global_batch, question.cluster, question.keys);
}

plan::Plan plan_of(const Question& question, const Frame& frame, const std::vector<Point>& stages) {
  plan::Plan plan{.global_batch = question.global_batch,
                  .microbatches = frame.microbatches,
                  .run_ahead = frame.run_ahead,
                  .chunks = frame.chunks,
                  .zero_bubble = frame.zero_bubble ? 1 : 0,
                  .stages = {}};
  int first_layer = 0;
  for (int chunk = 0; chunk < frame.chunks; ++chunk)
    for (const Point& point : stages) {
      const Layout& mesh = frame.layouts[std::size_t(point.layout)];
      const std::string& group = question.cluster.groups[std::size_t(mesh.group)].name;
      plan::Stage& stage = plan.stages.emplace_back(stage_of(mesh, group));
      stage.first_layer = first_layer;
      point.strategy.of_chunk(chunk, frame.chunks).apply_to(stage);
      first_layer += stage.layers;
    }
  return question.conform ? question.conform(std::move(plan)) : plan;
}

}  // namespace brume::tuner
