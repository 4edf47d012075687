#include "schedule/account.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.hpp"
#include "base/parallel.hpp"
#include "schedule/compile.hpp"
#include "schedule/steady.hpp"
#include "spans.hpp"
#include "steady_part.hpp"

namespace brume::schedule {
namespace {

/// The first of the programs that stands for a stage.
std::size_t of_stage(const plan::Plan& plan, std::span<const Program> programs, int stage) {
  const auto found = std::ranges::find_if(programs, [&](const Program& program) {
    return plan::stage_index(plan, program.rank) == stage;
  });
  require(found != programs.end(), Failure::bug, "no rank of stage {} was simulated", stage);
  return std::size_t(found - programs.begin());
}

}  // namespace

const char* name(Activity activity) {
  switch (activity) {
    case Activity::computing: return "computing";
    case Activity::recomputing: return "recomputing";
    case Activity::updating: return "updating";
    case Activity::collective_tp: return "tp";
    case Activity::collective_dp: return "dp";
    case Activity::copying: return "copies";
    case Activity::messaging: return "messages";
    case Activity::waiting: return "waiting";
  }
  return "";
}

Activity activity(Channel channel) {
  switch (channel) {
    case Channel::compute: break;
    case Channel::collective_tp: return Activity::collective_tp;
    case Channel::collective_dp: return Activity::collective_dp;
    case Channel::p2p_forward:
    case Channel::p2p_backward: return Activity::messaging;
    case Channel::h2d:
    case Channel::d2h:
    case Channel::disk: return Activity::copying;
    case Channel::host: return Activity::updating;
  }
  return Activity::computing;
}

Activity activity(const Task& task) {
  if (task.channel != Channel::compute) return activity(task.channel);
  switch (task.operation) {
    case Operation::forward:
    case Operation::backward:
    case Operation::backward_input:
    case Operation::backward_weights:
    case Operation::loss: return Activity::computing;
    case Operation::recompute: return Activity::recomputing;
    default: return Activity::updating;
  }
}

// Each activity adds the time in which those before it do not run; the rest is waiting.
Seconds seconds(std::span<const Activity> activities, std::span<const Span> spans,
                double iteration_s) {
  std::array<Spans, num_activities> of;
  for (std::size_t task = 0; task < spans.size(); ++task) {
    const Span within{std::max(spans[task].start_s, 0.0), std::min(spans[task].end_s, iteration_s)};
    if (within.end_s > within.start_s) of[std::size_t(activities[task])].push_back(within);
  }
  Seconds added{};
  Spans all;
  double busy_s = 0.0;
  for (std::size_t a = 0; a < std::size_t(Activity::waiting); ++a) {
    all.insert(all.end(), of[a].begin(), of[a].end());
    all = united(std::move(all));
    const double until_here_s = length(all);
    added[a] = until_here_s - busy_s;
    busy_s = until_here_s;
  }
  added[std::size_t(Activity::waiting)] = iteration_s - busy_s;
  return added;
}

std::array<std::int64_t, num_contents> live_by_content(const Program& program) {
  std::vector<std::int64_t> change(program.tasks.size() + 1, 0);
  const auto on_device = [](const Buffer& b) {
    return b.tier == Tier::device && (b.persistent || b.first_task >= 0);
  };
  for (const Buffer& b : program.buffers) {
    if (!on_device(b) || b.persistent) continue;
    change[b.first_task] += b.bytes;
    change[std::size_t(b.last_task) + 1] -= b.bytes;
  }
  std::partial_sum(change.begin(), change.end(), change.begin());
  const int peak = int(std::ranges::max_element(change) - change.begin());
  std::array<std::int64_t, num_contents> bytes{};
  for (const Buffer& b : program.buffers)
    if (on_device(b) && (b.persistent || (b.first_task <= peak && peak <= b.last_task)))
      bytes[std::size_t(b.content)] += b.bytes;
  return bytes;
}

double Account::waiting_share(const plan::Plan& plan) const {
  double waiting_s = 0.0;
  for (std::size_t i = 0; i < stages.size(); ++i)
    waiting_s += plan.stages[i].devices() * stages[i].seconds[std::size_t(Activity::waiting)];
  return waiting_s / (plan.devices() * iteration_s);
}

Account account(const plan::Plan& plan, std::span<const Program> programs,
                const Simulation& simulation) {
  Account account{.iteration_s = simulation.iteration_s, .stages = {}};
  for (int stage = 0; stage < plan.pipeline_size(); ++stage) {
    const std::size_t rank = of_stage(plan, programs, stage);
    std::vector<Activity> activities;
    for (const Task& task : programs[rank].tasks) activities.push_back(activity(task));
    account.stages.push_back(
        {.seconds = seconds(activities, simulation.spans[rank], simulation.iteration_s),
         .device_bytes = live_by_content(programs[rank])});
  }
  return account;
}

Account account(const plan::Plan& plan, const model::Config& model,
                const hardware::Machine& machine, int threads, const Deadline& deadline) {
  Packings packings;
  const std::vector<int> ranks = simulated_ranks(plan);
  if (!ranks.empty()) {
    std::vector<Program> programs(ranks.size());
    parallel_for(ranks.size(), threads, [&](std::size_t i, std::size_t) {
      programs[i] = compile(plan, model, ranks[i], {.deadline = deadline, .packings = &packings});
    });
    return account(plan, programs, simulate(programs, plan, model, machine, deadline));
  }
  Account found;
  const auto values = [&](const plan::Plan& of, const FirstPart& part) {
    found = account(of, part.programs, part.simulation);
    std::vector<double> all{found.iteration_s};
    for (const StageAccount& stage : found.stages)
      all.insert(all.end(), stage.seconds.begin(), stage.seconds.end());
    return all;
  };
  const std::vector<double> all =
      extrapolated(plan, model, machine, deadline, threads, packings, false, values);
  found.iteration_s = all[0];
  for (std::size_t i = 0; i < found.stages.size(); ++i)
    std::copy_n(all.begin() + 1 + std::ptrdiff_t(i) * num_activities, num_activities,
                found.stages[i].seconds.begin());
  return found;
}

}  // namespace brume::schedule
