#include "schedule/verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "activities.hpp"
#include "schedule/place.hpp"

namespace brume::schedule {
namespace {

using Clock = std::array<int, num_channels>;

/// For each task and channel: the last task of the channel that is surely done before the task
/// starts. Waits are taken as they stand, whatever made them.
std::vector<Clock> done_before(const Program& program) {
  std::vector<Clock> before(program.tasks.size());
  Clock last;
  last.fill(-1);
  for (std::size_t id = 0; id < program.tasks.size(); ++id) {
    const Task& task = program.tasks[id];
    Clock& clock = before[id];
    clock.fill(-1);
    const auto after = [&](int other) {
      const Clock& theirs = before[other];
      for (std::size_t c = 0; c < clock.size(); ++c) clock[c] = std::max(clock[c], theirs[c]);
      int& own = clock[std::size_t(program.task(other).channel)];
      own = std::max(own, other);
    };
    if (const int previous = last[std::size_t(task.channel)]; previous >= 0) after(previous);
    for (int other : task.waits)
      if (other < int(id)) after(other);
    last[std::size_t(task.channel)] = int(id);
  }
  return before;
}

/// One task's access to a range of bytes.
struct Access {
  std::int64_t first, end;
  int task;
  bool writes;
};

std::vector<Access> accesses(const Program& program, Tier tier) {
  std::vector<Access> all;
  for (std::size_t id = 0; id < program.tasks.size(); ++id)
    for (const Operand& operand : program.tasks[id].operands) {
      const Buffer& buffer = program.buffer(operand);
      if (buffer.tier != tier) continue;
      const auto [first, end] = touched_bytes(buffer, operand, int(id));
      all.push_back({first, end, int(id), operand.writes});
    }
  std::sort(all.begin(), all.end(),
            [](const Access& a, const Access& b) { return a.first < b.first; });
  return all;
}

}  // namespace

std::vector<std::string> verify(const Program& program) {
  std::vector<std::string> wrong;
  for (std::size_t id = 0; id < program.tasks.size(); ++id)
    for (int other : program.tasks[id].waits)
      if (other < 0 || other >= int(id))
        wrong.push_back(
            fmt::format("task {} waits for task {}, which is not before it", id, other));
  for (const Buffer& buffer : program.buffers)
    if (buffer.first_task >= 0 && buffer.offset < 0)
      wrong.push_back(fmt::format("buffer {} has no address", buffer.name));

  const std::vector<Clock> before = done_before(program);
  const auto ordered = [&](int early, int late) {
    if (early > late) std::swap(early, late);
    return before[late][std::size_t(program.task(early).channel)] >= early;
  };
  for (int t = 0; t < num_tiers; ++t) {
    // A sweep over addresses: `open` holds the accesses that reach beyond the current one's first
    // byte.
    std::vector<Access> open;
    for (const Access& access : accesses(program, Tier(t))) {
      std::erase_if(open, [&](const Access& other) { return other.end <= access.first; });
      for (const Access& other : open) {
        if ((!access.writes && !other.writes) || access.task == other.task) continue;
        if (program.task(access.task).channel == program.task(other.task).channel) continue;
        if (!ordered(access.task, other.task))
          wrong.push_back(fmt::format("rank {}: '{}' and '{}' touch the same bytes in no order",
                                      program.rank, label(program.task(other.task)),
                                      label(program.task(access.task))));
      }
      open.push_back(access);
    }
  }
  return wrong;
}

std::vector<std::string> verify(std::span<const Program> programs, const plan::Plan& plan) {
  Activities activities(programs, plan);
  if (!activities.unmatched.empty()) return activities.unmatched;
  // Run everything in no time; what is left can never start.
  Readiness readiness(programs, activities);
  std::vector<int> started = readiness.start();
  while (!started.empty()) {
    const int activity = started.back();
    started.pop_back();
    for (int next : readiness.finish(activity)) started.push_back(next);
  }
  return readiness.blocked();
}

}  // namespace brume::schedule
