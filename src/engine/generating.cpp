/// @file Plans that generation can run, and the lengths of its passes.
#include <algorithm>
#include <numeric>

#include "base/error.hpp"
#include "engine/generator.hpp"

namespace brume::engine {

std::vector<int> pass_lengths(const plan::Plan& plan, int longest) {
  int step = 1;
  for (const plan::Stage& stage : plan.stages) step = std::lcm(step, stage.tp);
  std::vector<int> all{step};
  while (all.back() < longest) all.push_back(2 * all.back());
  return all;
}

plan::Plan generating(plan::Plan plan) {
  require(plan.order.chunks == 1, Failure::input,
          "generation needs stages with devices of their own, the plan has {} stages on each",
          plan.order.chunks);
  const int copies = plan.stages.front().data_ranks();
  for (plan::Stage& stage : plan.stages) {
    require(stage.data_ranks() == copies, Failure::input,
            "generation needs as many data-parallel ranks in each stage, the plan has {} and {}",
            copies, stage.data_ranks());
    const plan::Stage given = stage;
    stage = {.first_layer = given.first_layer,
             .layers = given.layers,
             .nodes = given.nodes,
             .devices_per_node = given.devices_per_node,
             .dp = copies,
             .tp = given.tp,
             .ep = std::min(given.ep, given.tp),  // data-parallel ranks do not wait for each other
             .weight_offload_ratio = given.weight_offload_ratio,
             .group = given.group};
  }
  plan.global_batch = copies;
  plan.microbatches = 1;
  plan.order = {};
  return plan;
}

}  // namespace brume::engine
