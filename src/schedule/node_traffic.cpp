#include "schedule/node_traffic.hpp"

#include <map>
#include <set>
#include <utility>

#include "base/parallel.hpp"
#include "schedule/compile.hpp"
#include "schedule/simulate.hpp"
#include "schedule/steady.hpp"
#include "task_time.hpp"

namespace brume::schedule {
namespace {

/// The first rank of each stage on each of its nodes: what others there send goes the same way.
std::vector<int> first_ranks(const plan::Plan& plan, const hardware::Machine& machine) {
  std::vector<int> ranks;
  std::pair<int, plan::Node> last{-1, {}};
  for (int rank = 0; rank < plan.devices(); ++rank) {
    const std::pair place{plan::stage_index(plan, rank), price::node_of(plan, machine, rank)};
    if (place != last) ranks.push_back(rank);
    last = place;
  }
  return ranks;
}

/// The ranks that a transfer is counted for, once for all of them; none: it is none, or counted on
/// another rank.
std::vector<int> counted_ranks(const Task& task, const Program& program, const plan::Plan& plan) {
  if (task.operation == Operation::send) return {program.rank, task.peer};
  if (task.group.empty()) return {};
  std::vector<int> ranks = plan::members(plan, program.rank, task.group);
  return ranks.front() == program.rank ? ranks : std::vector<int>();
}

}  // namespace

std::vector<NodeTraffic> node_traffic(const plan::Plan& whole, const model::Config& model,
                                      const hardware::Machine& machine, int threads,
                                      const Deadline& deadline) {
  plan::Plan plan = whole;
  plan.node_order.clear();
  hardware::Machine alike = machine;
  alike.forget_slow_pairs();
  const std::vector<int> ranks = first_ranks(plan, alike);
  std::map<std::vector<int>, double> seconds;  // by places
  // Each microbatch after the first one adds what the second one does.
  const int more = plan.microbatches - 1;
  for (const auto& [microbatches, weight] : {std::pair(1, 1 - more), std::pair(2, more)}) {
    if (weight == 0) continue;
    const plan::Plan part = of_microbatches(plan, microbatches);
    TaskTimes times(part, model, alike);
    std::vector<Program> programs(ranks.size());
    parallel_for(ranks.size(), threads, [&](std::size_t i, std::size_t) {
      programs[i] = compile(part, model, ranks[i], {.tight = false, .deadline = deadline});
    });
    for (const Program& program : programs)
      for (const Task& task : program.tasks) {
        std::set<int> places;
        for (const int rank : counted_ranks(task, program, part))
          places.insert(price::node_of(part, alike, rank).index);
        if (places.size() > 1)
          seconds[{places.begin(), places.end()}] += weight * times.of(task, program.rank);
      }
  }
  std::vector<NodeTraffic> traffic;
  for (const auto& [places, sum_s] : seconds) traffic.push_back({places, sum_s});
  return traffic;
}

}  // namespace brume::schedule
