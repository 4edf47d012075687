#include "groups.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "comm/device_group.hpp"

namespace brume::engine {

using schedule::Channel;
using schedule::Operation;

namespace {

/// Channels that may have a transfer on a rank's device at once.
int channels_that_communicate(const plan::Plan& plan) {
  const bool in_layers = std::ranges::any_of(plan.stages, [](const plan::Stage& s) {
    return s.tp > 1 || s.cp > 1 || s.expert_data_ranks() > 1;
  });
  return 1 + int(in_layers) + (plan.pipeline_size() > 1 ? 2 : 0);
}

}  // namespace

bool sends_parts(Operation operation) {
  return operation == Operation::all_to_all || operation == Operation::send_rows ||
         operation == Operation::return_rows;
}

Groups::Groups(const plan::Plan& plan, const schedule::Program& program,
               comm::Communicator& world) {
  const int at_once = channels_that_communicate(plan);
  const auto carries = [&](model::AxisSet axes) {
    return std::ranges::any_of(program.tasks,
                               [&](const schedule::Task& task) {
                                 return sends_parts(task.operation) && task.group == axes;
                               })
               ? comm::Carries::messages
               : comm::Carries::collectives;
  };
  const auto add = [&](model::AxisSet axes) {
    const std::vector<int> ranks = plan::members(plan, world.rank(), axes);
    const auto mine = std::ranges::find(ranks, world.rank()) - ranks.begin();
    // A colour is the first rank of the group: unlike for different groups of one split.
    auto group = comm::device_group(world.split(ranks.front(), int(mine)), at_once, carries(axes));
    require(group->size() == std::ssize(ranks), Failure::bug, "a group of wrong size");
    groups_.emplace(axes, std::move(group));
  };
  add(model::Axis::tp);
  add(model::state_axes);
  // All ranks of the job take part in a split.
  if (std::ranges::any_of(plan.stages, [](const plan::Stage& s) { return s.replicas > 1; })) {
    add(model::Axis::shard);
    add(model::Axis::replica);
  }
  if (std::ranges::any_of(plan.stages, [](const plan::Stage& s) { return s.cp > 1; }))
    add(model::Axis::cp);
  if (std::ranges::any_of(plan.stages,
                          [](const plan::Stage& s) { return s.expert_data_ranks() > 1; })) {
    add(model::expert_axes);
    add(model::Axis::ep);
  }
  add(model::all_axes);
  for (auto* messages : {&p2p_forward_, &p2p_backward_})
    *messages = comm::device_group(world.split(0, world.rank()), at_once, comm::Carries::messages);
}

comm::Communicator& Groups::of(const schedule::Task& task) const {
  if (task.group.empty())
    return task.channel == Channel::p2p_forward ? *p2p_forward_ : *p2p_backward_;
  const auto found = groups_.find(task.group);
  // Without replicas all ranks with the same weights shard one.
  return found != groups_.end() ? *found->second : *groups_.at(model::state_axes);
}

std::vector<int> partners(const plan::Plan& plan, int rank, const schedule::Task& task) {
  if (task.peer >= 0) return {task.peer};
  std::vector<int> others = plan::members(plan, rank, task.group);
  std::erase(others, rank);
  return others;
}

}  // namespace brume::engine
