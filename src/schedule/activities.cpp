#include "activities.hpp"

#include <fmt/format.h>

#include <map>
#include <tuple>

#include "schedule/simulate.hpp"

namespace brume::schedule {
namespace {

/// What partners of a transfer have in common: channel, ranks, and how many came before.
using Key = std::tuple<int, std::vector<int>, int>;

std::vector<int> partners(const plan::Plan& plan, const Task& task, int rank) {
  if (task.group != Group::none) return group_ranks(plan, rank, task.group);
  if (task.operation == Operation::send) return {rank, task.peer};
  return {task.peer, rank};
}

std::int64_t transfer_bytes(const Task& task) {
  return task.operands.empty() ? 0 : task.operands[0].bytes;
}

}  // namespace

Activities::Activities(std::span<const Program> programs, const plan::Plan& plan)
    : of(programs.size()) {
  std::map<Key, int> found;
  for (std::size_t rank = 0; rank < programs.size(); ++rank) {
    std::map<std::pair<int, std::vector<int>>, int> count;
    for (std::size_t id = 0; id < programs[rank].tasks.size(); ++id) {
      const Task& task = programs[rank].tasks[id];
      int activity = int(members.size());
      if (task.group != Group::none || task.peer >= 0) {
        const std::vector<int> ranks = partners(plan, task, int(rank));
        const int sequence = count[{int(task.channel), ranks}]++;
        activity = found.try_emplace({int(task.channel), ranks, sequence}, activity).first->second;
      }
      if (activity == int(members.size())) members.emplace_back();
      members[std::size_t(activity)].push_back({int(rank), int(id)});
      of[rank].push_back(activity);
    }
  }
  for (const auto& activity : members) {
    const Task& first =
        programs[std::size_t(activity[0].rank)].tasks[std::size_t(activity[0].task)];
    const bool alone = first.group == Group::none && first.peer < 0;
    const std::size_t expected = alone ? 1 : partners(plan, first, activity[0].rank).size();
    bool match = activity.size() == expected;
    for (const Member& member : activity) {
      const Task& task = programs[std::size_t(member.rank)].tasks[std::size_t(member.task)];
      match = match && transfer_bytes(task) == transfer_bytes(first) && task.phase == first.phase &&
              (first.peer >= 0 || task.operation == first.operation);
    }
    if (!match)
      unmatched.push_back(
          fmt::format("rank {}: '{}' has {} of {} partners, or they differ in kind or size",
                      activity[0].rank, label(first), activity.size(), expected));
  }
}

Readiness::Readiness(std::span<const Program> programs, const Activities& activities)
    : programs_(programs),
      activities_(activities),
      queue_(programs.size()),
      next_(programs.size()),
      ready_(activities.members.size(), 0) {
  for (std::size_t rank = 0; rank < programs.size(); ++rank) {
    const std::size_t count = programs[rank].tasks.size();
    done_.emplace_back(count, 0);
    announced_.emplace_back(count, 0);
    for (std::size_t id = 0; id < count; ++id)
      queue_[rank][std::size_t(programs[rank].tasks[id].channel)].push_back(int(id));
    next_[rank].fill(0);
  }
}

void Readiness::look(int rank, int channel, std::vector<int>& started) {
  const auto r = std::size_t(rank), c = std::size_t(channel);
  if (next_[r][c] >= queue_[r][c].size()) return;
  const int id = queue_[r][c][next_[r][c]];
  if (announced_[r][std::size_t(id)]) return;
  for (int other : programs_[r].tasks[std::size_t(id)].waits)
    if (!done_[r][std::size_t(other)]) return;
  announced_[r][std::size_t(id)] = 1;
  const int activity = activities_.of[r][std::size_t(id)];
  if (++ready_[std::size_t(activity)] == int(activities_.members[std::size_t(activity)].size()))
    started.push_back(activity);
}

std::vector<int> Readiness::start() {
  std::vector<int> started;
  for (std::size_t rank = 0; rank < programs_.size(); ++rank)
    for (int channel = 0; channel < num_channels; ++channel) look(int(rank), channel, started);
  return started;
}

std::vector<int> Readiness::finish(int activity) {
  std::vector<int> started;
  for (const Member& member : activities_.members[std::size_t(activity)]) {
    const auto r = std::size_t(member.rank);
    done_[r][std::size_t(member.task)] = 1;
    ++next_[r][std::size_t(programs_[r].tasks[std::size_t(member.task)].channel)];
  }
  // Another channel of the rank may have waited for this one.
  for (const Member& member : activities_.members[std::size_t(activity)])
    for (int channel = 0; channel < num_channels; ++channel) look(member.rank, channel, started);
  return started;
}

std::vector<std::string> Readiness::blocked() const {
  std::vector<std::string> names;
  for (std::size_t r = 0; r < programs_.size(); ++r)
    for (std::size_t c = 0; c < std::size_t(num_channels); ++c)
      if (next_[r][c] < queue_[r][c].size())
        names.push_back(fmt::format(
            "rank {}: '{}' on {} never starts", r,
            label(programs_[r].tasks[std::size_t(queue_[r][c][next_[r][c]])]), name(Channel(c))));
  return names;
}

}  // namespace brume::schedule
