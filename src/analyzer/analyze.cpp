#include "analyzer/analyzer.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "stage_memory.hpp"
#include "stage_time.hpp"

namespace brume::analyzer {
namespace {

Expr sum(const std::vector<Term>& terms) {
  Expr total = 0.0;
  for (const Term& term : terms) total += term.value;
  return total;
}

/// A role's expressions: stable time, delta, both peaks on the device, host memory, disk.
class RoleTape {
 public:
  RoleTape(const model::Config& model, const hardware::Machine& machine, StageRole role)
      : tape_(outputs(stage_expressions(model, machine, role)), variables()) {}

  std::array<double, 6> at(const std::map<std::string, double, std::less<>>& values) const {
    std::vector<const double*> inputs;
    for (const std::string& name : variables()) inputs.push_back(&values.at(name));
    std::array<double, 6> results;
    std::array<double*, 6> columns;
    std::ranges::transform(results, columns.begin(), [](double& result) { return &result; });
    tape_.evaluate(inputs, columns, 1);
    return results;
  }

 private:
  static std::array<Expr, 6> outputs(const StageExpressions& e) {
    return {e.stable_s,   e.delta_s,   e.peak_forward_bytes, e.peak_backward_bytes,
            e.host_bytes, e.disk_bytes};
  }
  symbolic::Tape tape_;
};

}  // namespace

const std::vector<std::string>& variables() {
  static const std::vector<std::string> names{"l", "c",  "b",  "dp", "tp", "z", "w", "g", "o",
                                              "a", "od", "ad", "p",  "r",  "G", "S", "n", "m"};
  return names;
}

StageExpressions stage_expressions(const model::Config& model, const hardware::Machine& machine,
                                   StageRole role) {
  TimeTerms time = stage_time(model, machine, role);
  const MemoryExpressions memory = stage_memory(model, role);
  const Expr stable_s = sum(time.stable), delta_s = sum(time.delta);
  return {.stable_terms = std::move(time.stable),
          .delta_terms = std::move(time.delta),
          .stable_s = stable_s,
          .delta_s = delta_s,
          .peak_forward_bytes = memory.peak_forward_bytes,
          .peak_backward_bytes = memory.peak_backward_bytes,
          .host_bytes = memory.host_bytes,
          .disk_bytes = memory.disk_bytes};
}

StageRole role_of(const plan::Plan& plan, int stage, const hardware::Machine& machine) {
  const bool first = stage == 0, last = stage + 1 == plan.num_stages();
  const auto group = [&](int i) { return machine.index(plan.stages[std::size_t(i)].group); };
  const int own = group(stage);
  return {.first = first,
          .last = last,
          .group = own,
          .before = first ? own : group(stage - 1),
          .after = last ? own : group(stage + 1),
          .other_end = first  ? group(plan.num_stages() - 1)
                       : last ? group(0)
                              : own,
          .disk = plan::uses_disk(plan.stages[std::size_t(stage)])};
}

std::map<std::string, double, std::less<>> bindings(const plan::Plan& plan, int stage) {
  const plan::Stage& s = plan.stages[std::size_t(stage)];
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
          {"od", s.optim_disk_ratio},
          {"ad", s.act_disk_ratio},
          {"p", plan::in_flight(plan.run_ahead, plan.num_stages() - 1 - stage, plan.microbatches)},
          {"r", plan.run_ahead},
          {"G", plan.microbatches},
          {"S", plan.num_stages()},
          {"n", s.nodes},
          {"m", s.devices_per_node}};
}

Prediction analyze(const plan::Plan& plan, const model::Config& model,
                   const hardware::Machine& machine) {
  Prediction prediction{};
  std::vector<StageTime> times;
  std::map<StageRole, RoleTape> tapes;  // stages between the ends mostly share one
  for (int i = 0; i < plan.num_stages(); ++i) {
    const StageRole role = role_of(plan, i, machine);
    const auto& tape = tapes.try_emplace(role, model, machine, role).first;
    const auto [stable_s, delta_s, forward, backward, host, disk] =
        tape->second.at(bindings(plan, i));
    times.push_back({stable_s, delta_s});
    prediction.stages.push_back({.time = times.back(),
                                 .peak_forward_bytes = std::llround(forward),
                                 .peak_backward_bytes = std::llround(backward),
                                 .host_bytes = std::llround(host),
                                 .disk_bytes = std::llround(disk)});
  }
  prediction.iteration_s = iteration_time(times, plan.microbatches);
  return prediction;
}

}  // namespace brume::analyzer
