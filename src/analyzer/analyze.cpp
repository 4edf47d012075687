#include "analyzer/analyzer.hpp"

#include <algorithm>
#include <cmath>

#include "stage_memory.hpp"
#include "stage_time.hpp"

namespace brume::analyzer {
namespace {

Expr sum(const std::vector<Term>& terms) {
  Expr total = 0.0;
  for (const Term& term : terms) total += term.value;
  return total;
}

}  // namespace

const std::vector<std::string>& variables() {
  static const std::vector<std::string> names{"l", "c", "b", "dp", "tp", "z", "w", "g",
                                              "o", "a", "p", "G",  "S",  "n", "m"};
  return names;
}

StageExpressions stage_expressions(const model::Config& model, const hardware::Profile& profile,
                                   StageRole role) {
  TimeTerms time = stage_time(model, profile, role);
  const MemoryExpressions memory = stage_memory(model, role);
  const Expr stable_s = sum(time.stable), delta_s = sum(time.delta);
  return {.stable_terms = std::move(time.stable),
          .delta_terms = std::move(time.delta),
          .stable_s = stable_s,
          .delta_s = delta_s,
          .peak_forward_bytes = memory.peak_forward_bytes,
          .peak_backward_bytes = memory.peak_backward_bytes,
          .host_bytes = memory.host_bytes};
}

StageRole role_of(const plan::Plan& plan, int stage) {
  return {.first = stage == 0, .last = stage + 1 == plan.num_stages()};
}

std::map<std::string, double, std::less<>> bindings(const plan::Plan& plan, int stage) {
  const plan::Stage& s = plan.stages[std::size_t(stage)];
  const int in_flight = std::min(plan.num_stages() - 1 - stage, plan.microbatches - 1);
  return {{"l", s.layers},
          {"c", s.ckpt_layers},
          {"b", s.microbatch},
          {"dp", s.dp},
          {"tp", s.tp},
          {"z", s.zero_level},
          {"w", s.weight_offload_ratio},
          {"g", s.grad_offload_ratio},
          {"o", s.optim_offload_ratio},
          {"a", s.act_offload_ratio},
          {"p", in_flight},
          {"G", plan.microbatches},
          {"S", plan.num_stages()},
          {"n", s.nodes},
          {"m", s.devices_per_node}};
}

Prediction analyze(const plan::Plan& plan, const model::Config& model,
                   const hardware::Profile& profile) {
  Prediction prediction{};
  std::vector<StageTime> times;
  for (int i = 0; i < plan.num_stages(); ++i) {
    const StageExpressions stage = stage_expressions(model, profile, role_of(plan, i));
    const auto values = bindings(plan, i);
    const auto bytes = [&](const Expr& e) { return std::llround(e.evaluate(values)); };
    times.push_back({stage.stable_s.evaluate(values), stage.delta_s.evaluate(values)});
    prediction.stages.push_back({.time = times.back(),
                                 .peak_forward_bytes = bytes(stage.peak_forward_bytes),
                                 .peak_backward_bytes = bytes(stage.peak_backward_bytes),
                                 .host_bytes = bytes(stage.host_bytes)});
  }
  prediction.iteration_s = iteration_time(times, plan.microbatches);
  return prediction;
}

}  // namespace brume::analyzer
