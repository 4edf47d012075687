#include "schedule/steady.hpp"

#include <cstdint>
#include <utility>
#include <vector>

#include "schedule/compile.hpp"
#include "schedule/simulate.hpp"
#include "steady_part.hpp"

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

FirstPart simulated(const plan::Plan& part, const model::Config& model,
                    const hardware::Machine& machine, const Deadline& deadline) {
  const bool all_ranks = layer_passes(part) <= most_passes;
  std::vector<Program> programs;
  for (int rank = 0; rank < part.devices(); ++rank) {
    const plan::Place place = plan::place(part, rank);
    if (all_ranks || (place.dp_rank == 0 && place.tp_rank == 0))
      programs.push_back(compile(part, model, rank, {.tight = false, .deadline = deadline}));
  }
  Simulation simulation = simulate(programs, part, model, machine, deadline);
  return {std::move(programs), std::move(simulation)};
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

std::vector<double> extrapolated(
    const plan::Plan& plan, const model::Config& model, const hardware::Machine& machine,
    const Deadline& deadline,
    const std::function<std::vector<double>(const plan::Plan&, const FirstPart&)>& values) {
  const auto of = [&](const plan::Plan& part) {
    return values(part, simulated(part, model, machine, deadline));
  };
  const int steady = steady_microbatches(plan), more = steady + steady / 2;
  if (plan.microbatches <= more) return of(plan);
  const std::vector<double> fewer = of(of_microbatches(plan, steady));
  std::vector<double> all = of(of_microbatches(plan, more));
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] += (plan.microbatches - more) * (all[i] - fewer[i]) / (more - steady);
  return all;
}

double steady_time(const plan::Plan& plan, const model::Config& model,
                   const hardware::Machine& machine, const Deadline& deadline) {
  return extrapolated(plan, model, machine, deadline,
                      [](const plan::Plan&, const FirstPart& part) {
                        return std::vector{part.simulation.iteration_s};
                      })
      .front();
}

}  // namespace brume::schedule
