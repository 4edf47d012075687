#include "schedule/steady.hpp"

#include <cstdint>
#include <vector>

#include "schedule/compile.hpp"
#include "schedule/simulate.hpp"

namespace brume::schedule {
namespace {

/// Passes over layers, of all ranks, up to which all ranks are simulated.
constexpr std::int64_t most_passes = 3'000;

std::int64_t layer_passes(const plan::Plan& plan) {
  std::int64_t sum = 0;
  for (const plan::Stage& s : plan.stages)
    sum += std::int64_t{s.devices()} * s.layers * plan.microbatches;
  return sum;
}

double time_of_part(const plan::Plan& part, const model::Config& model,
                    const hardware::Machine& machine, const Deadline& deadline) {
  const bool all_ranks = layer_passes(part) <= most_passes;
  std::vector<Program> programs;
  for (int rank = 0; rank < part.devices(); ++rank) {
    const plan::Place place = plan::place(part, rank);
    if (all_ranks || (place.dp_rank == 0 && place.tp_rank == 0))
      programs.push_back(compile(part, model, rank, {.tight = false, .deadline = deadline}));
  }
  return simulate(programs, part, model, machine, deadline).iteration_s;
}

}  // namespace

int steady_microbatches(const plan::Plan& plan) {
  return 2 * plan.run_ahead * plan.num_stages() + 4;
}

plan::Plan of_microbatches(plan::Plan plan, int microbatches) {
  plan.global_batch = plan.global_batch / plan.microbatches * microbatches;
  plan.microbatches = microbatches;
  return plan;
}

double steady_time(const plan::Plan& plan, const model::Config& model,
                   const hardware::Machine& machine, const Deadline& deadline) {
  const auto seconds = [&](const plan::Plan& part) {
    return time_of_part(part, model, machine, deadline);
  };
  const int steady = steady_microbatches(plan), more = steady + steady / 2;
  if (plan.microbatches <= more) return seconds(plan);
  const double steady_s = seconds(of_microbatches(plan, steady));
  const double more_s = seconds(of_microbatches(plan, more));
  return more_s + (plan.microbatches - more) * (more_s - steady_s) / (more - steady);
}

}  // namespace brume::schedule
