/// @file Plans whose predictions are compared with measured times.
#include "prediction_plans.hpp"

#include <algorithm>
#include <iterator>

namespace brume::perf {
namespace {

/// Two stages on a half of the ranks each, that differ in their layers and, where a half has more
/// than one rank, in microbatch, dp and tp; in 1F1B and further ahead.
std::vector<plan::Plan> unlike_stages(const model::Config& model, int ranks) {
  std::vector<plan::Plan> all;
  if (ranks % 2 != 0) return all;
  const int half = ranks / 2;
  for (const int layers : {model.num_layers / 3, model.num_layers - model.num_layers / 3})
    for (const int b : {1, 4})
      for (const int run_ahead : {1, 2}) {
        if (global_batch % (half * b) != 0) continue;
        plan::Plan plan{.global_batch = global_batch,
                        .microbatches = global_batch / (half * b),
                        .order = {.run_ahead = run_ahead},
                        .stages = {}};
        plan.stages.push_back(
            {.layers = layers, .devices_per_node = half, .microbatch = b, .dp = half});
        plan.stages.push_back({.first_layer = layers,
                               .layers = model.num_layers - layers,
                               .devices_per_node = half,
                               .microbatch = b * half,
                               .tp = half});
        all.push_back(plan);
      }
  return all;
}

}  // namespace

std::vector<plan::Plan> plans(const model::Config& model, int ranks) {
  using Change = void (*)(plan::Stage&);
  const std::vector<Change> knobs{
      [](plan::Stage&) {},
      [](plan::Stage& s) { s.ckpt_layers = s.layers; },
      [](plan::Stage& s) { s.optim_offload_ratio = 1.0; },
      [](plan::Stage& s) { s.act_offload_ratio = 1.0; },
      [](plan::Stage& s) { s.weight_offload_ratio = 1.0; },
      [](plan::Stage& s) { s.grad_offload_ratio = 1.0; },
      [](plan::Stage& s) { s.zero_level = 1; },
      [](plan::Stage& s) { s.zero_level = 2; },
      [](plan::Stage& s) { s.zero_level = 3; },
      [](plan::Stage& s) {
        s.zero_level = 1;
        s.ckpt_layers = s.layers / 2;
        s.optim_offload_ratio = s.act_offload_ratio = 0.5;
      },
      [](plan::Stage& s) {
        s.zero_level = 3;
        s.ckpt_layers = s.layers;
        s.weight_offload_ratio = s.grad_offload_ratio = 0.5;
        s.optim_offload_ratio = s.act_offload_ratio = 1.0;
      },
  };
  std::vector<plan::Plan> all;
  for (int stages = 1; stages <= std::min(ranks, 3); ++stages)
    for (int tp = 1; tp * stages <= ranks; ++tp)
      for (int b : {1, 4}) {
        const int dp = ranks / (stages * tp);
        if (stages * tp * dp != ranks || model.num_layers % stages || model.num_heads % tp ||
            global_batch % (dp * b))
          continue;
        for (const Change& knob : knobs) {
          plan::Plan plan = plan::equal_stages(model, global_batch, stages,
                                               {.microbatch = b, .dp = dp, .tp = tp});
          std::ranges::for_each(plan.stages, [&](plan::Stage& stage) {
            knob(stage);
            if (dp == 1) stage.zero_level = 0;  // means nothing there
          });
          if (stages > 1 && all.size() % 2 == 1) plan.order.run_ahead = 2;
          if (std::ranges::find(all, plan) == all.end()) all.push_back(plan);
        }
      }
  std::ranges::copy(unlike_stages(model, ranks), std::back_inserter(all));
  return all;
}

}  // namespace brume::perf
