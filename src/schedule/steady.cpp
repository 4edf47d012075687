#include "schedule/steady.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/parallel.hpp"
#include "schedule/compile.hpp"
#include "schedule/simulate.hpp"
#include "spans.hpp"
#include "steady_part.hpp"

namespace brume::schedule {
namespace {

// Passes over layers up to which ranks are simulated, whole iterations and parts.
constexpr std::int64_t most_passes = 50'000, most_of_part = 3'000;
constexpr int most_ranks = 64;

std::int64_t layer_passes(const plan::Plan& plan, bool all_ranks) {
  std::int64_t sum = 0;
  for (const plan::Stage& s : plan.stages)
    sum += std::int64_t{all_ranks ? s.devices() : 1} * s.layers * plan.microbatches;
  return sum;
}

/// All ranks of a plan, or the first one of each stage.
std::vector<int> ranks_of(const plan::Plan& plan, bool all) {
  std::vector<int> ranks;
  for (int rank = 0; rank < plan.devices(); ++rank)
    if (all || rank == plan::first_rank(plan, plan::stage_index(plan, rank))) ranks.push_back(rank);
  return ranks;
}

std::vector<FirstPart> simulate_parts(const std::vector<plan::Plan>& parts,
                                      const model::Config& model, const hardware::Machine& machine,
                                      const Deadline& deadline, int threads, Packings& packings,
                                      bool one_a_stage) {
  struct Rank {
    std::size_t part, place;
    int rank;
  };
  std::vector<Rank> ranks;
  std::vector<FirstPart> simulated(parts.size());
  for (std::size_t part = 0; part < parts.size(); ++part)
    for (const int rank :
         ranks_of(parts[part], !one_a_stage && layer_passes(parts[part], true) <= most_of_part)) {
      ranks.push_back({part, simulated[part].programs.size(), rank});
      simulated[part].programs.emplace_back();
    }
  parallel_for(ranks.size(), threads, [&](std::size_t i, std::size_t) {
    const auto [part, place, rank] = ranks[i];
    simulated[part].programs[place] = compile(
        parts[part], model, rank, {.tight = false, .deadline = deadline, .packings = &packings});
  });
  parallel_for(parts.size(), threads, [&](std::size_t part, std::size_t) {
    FirstPart& first = simulated[part];
    first.simulation = simulate(first.programs, parts[part], model, machine, deadline);
  });
  return simulated;
}

/// Seconds in which a program's device computes or waits for others to add up what it computed.
double working_s(const Program& program, std::span<const Span> spans) {
  Spans working;
  for (std::size_t task = 0; task < spans.size(); ++task)
    if (const Channel channel = program.tasks[task].channel;
        channel == Channel::compute || channel == Channel::collective_tp)
      working.push_back(spans[task]);
  return length(united(std::move(working)));
}

/// Seconds from one microbatch's backward to the next one's, in the middle third of a part; 0:
/// unknown, as backwards of several virtual stages come in rounds.
double pace_s(const Program& program, std::span<const Span> spans, const plan::Plan& part) {
  const int first = part.microbatches / 3, last = 2 * first;
  if (part.order.chunks > 1 || first == last) return 0.0;
  std::vector<double> end_s(std::size_t(part.microbatches), 0.0);
  for (std::size_t id = 0; id < spans.size(); ++id)
    if (const Task& task = program.tasks[id];
        task.channel == Channel::compute && task.backward_pass && task.microbatch >= 0)
      end_s[std::size_t(task.microbatch)] = spans[id].end_s;
  return (end_s[std::size_t(last)] - end_s[std::size_t(first)]) / first;
}

/// Whether a part took as much longer than one of fewer microbatches as each rank worked longer,
/// and as its pace tells. Until then the slowest stage, be it by its copies, still uses up what
/// others are ahead.
bool is_steady(const plan::Plan& part, const FirstPart& more, const FirstPart& fewer, int added) {
  constexpr double least_share = 0.998;
  const double added_s = more.simulation.iteration_s - fewer.simulation.iteration_s;
  for (std::size_t i = 0; i < more.programs.size(); ++i) {
    const double slow_s = added * pace_s(more.programs[i], more.simulation.spans[i], part);
    if (added_s < least_share * slow_s) return false;
    const auto same = std::ranges::find(fewer.programs, more.programs[i].rank, &Program::rank);
    if (same == fewer.programs.end()) continue;
    const auto j = std::size_t(same - fewer.programs.begin());
    const double worked_s = working_s(more.programs[i], more.simulation.spans[i]) -
                            working_s(fewer.programs[j], fewer.simulation.spans[j]);
    if (added_s < least_share * worked_s) return false;
  }
  return true;
}

}  // namespace

std::vector<int> simulated_ranks(const plan::Plan& plan) {
  const bool all = plan.devices() <= most_ranks && layer_passes(plan, true) <= most_passes;
  if (!all && layer_passes(plan, false) > most_passes) return {};
  return ranks_of(plan, all);
}

int steady_microbatches(const plan::Plan& plan) {
  return plan.order.steady_microbatches(plan.shape());
}

plan::Plan of_microbatches(plan::Plan plan, int microbatches) {
  plan.global_batch = plan.global_batch / plan.microbatches * microbatches;
  plan.microbatches = microbatches;
  return plan;
}

std::vector<double> extrapolated(
    const plan::Plan& plan, const model::Config& model, const hardware::Machine& machine,
    const Deadline& deadline, int threads, Packings& packings, bool one_a_stage,
    const std::function<std::vector<double>(const plan::Plan&, const FirstPart&)>& values) {
  for (int steady = steady_microbatches(plan);; steady *= 2) {
    const int more = steady + steady / 2;
    std::vector<plan::Plan> parts{plan};
    if (plan.microbatches > more)
      parts = {of_microbatches(plan, more), of_microbatches(plan, steady)};
    const std::vector<FirstPart> simulated =
        simulate_parts(parts, model, machine, deadline, threads, packings, one_a_stage);
    if (parts.size() > 1 && !is_steady(parts[0], simulated[0], simulated[1], more - steady))
      continue;
    std::vector<double> all = values(parts[0], simulated[0]);
    if (parts.size() == 1) return all;
    const std::vector<double> fewer = values(parts[1], simulated[1]);
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i] += (plan.microbatches - more) * (all[i] - fewer[i]) / (more - steady);
    return all;
  }
}

double steady_time(const plan::Plan& plan, const model::Config& model,
                   const hardware::Machine& machine, const Deadline& deadline, int threads,
                   Packings* packings, bool one_a_stage) {
  Packings own;
  return extrapolated(plan, model, machine, deadline, threads, packings ? *packings : own,
                      one_a_stage,
                      [](const plan::Plan&, const FirstPart& part) {
                        return std::vector{part.simulation.iteration_s};
                      })
      .front();
}

}  // namespace brume::schedule
