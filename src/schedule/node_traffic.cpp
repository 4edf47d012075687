#include "schedule/node_traffic.hpp"

#include <array>
#include <map>
#include <set>
#include <utility>

#include "schedule/compile.hpp"
#include "schedule/simulate.hpp"
#include "schedule/steady.hpp"
#include "task_time.hpp"

namespace brume::schedule {
namespace {

/// The ranks that a transfer is counted for, once for all of them; none: it is none, or counted on
/// another rank.
std::vector<int> counted_ranks(const Task& task, const Program& program, const plan::Plan& plan) {
  if (task.operation == Operation::send) return {program.rank, task.peer};
  if (task.group == Group::none) return {};
  std::vector<int> ranks = group_ranks(plan, program.rank, task.group);
  return ranks.front() == program.rank ? ranks : std::vector<int>();
}

}  // namespace

std::vector<NodeTraffic> node_traffic(const plan::Plan& whole, const model::Config& model,
                                      const hardware::Machine& machine, const Deadline& deadline) {
  plan::Plan plan = whole;
  plan.node_order.clear();
  hardware::Machine alike = machine;
  alike.forget_slow_pairs();
  std::map<std::vector<int>, double> seconds;  // by places
  // Each microbatch after the first one adds what the second one does.
  const int more = plan.microbatches - 1;
  for (const auto& [microbatches, weight] : {std::pair(1, 1 - more), std::pair(2, more)}) {
    if (weight == 0) continue;
    const plan::Plan part = of_microbatches(plan, microbatches);
    TaskTimes times(part, model, alike);
    for (const int rank : simulated_ranks(part)) {
      const Program program = compile(part, model, rank, {.tight = false, .deadline = deadline});
      for (const Task& task : program.tasks) {
        std::set<int> places;
        for (const int one : counted_ranks(task, program, part))
          places.insert(price::node_of(part, alike, one).index);
        if (places.size() > 1)
          seconds[{places.begin(), places.end()}] += weight * times.of(task, rank);
      }
    }
  }
  std::vector<NodeTraffic> traffic;
  for (const auto& [places, sum_s] : seconds) traffic.push_back({places, sum_s});
  return traffic;
}

}  // namespace brume::schedule
