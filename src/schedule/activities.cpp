#include "activities.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <map>
#include <utility>

#include "base/error.hpp"
#include "schedule/simulate.hpp"

namespace brume::schedule {
namespace {

/// What partners of a transfer have in common.
struct Key {
  int channel;
  std::vector<int> parties;  ///< ranks; of messages between representatives, stages
  int microbatch;            ///< of messages between representatives
  int boundary;              ///< ... of ranks of several stages
  int sequence;              ///< how many came before

  auto operator<=>(const Key&) const = default;
};

std::int64_t transfer_bytes(const Task& task) {
  return task.operands.empty() ? 0 : task.operands[0].bytes;
}

bool is_transfer(const Task& task) { return !task.group.empty() || task.peer >= 0; }

/// The upper one of the blocks between which a stream passes; below 0 for a tied table.
int boundary(const Task& task) {
  if (task.block < 0) return task.block;
  const bool sends = task.operation == Operation::send;
  return task.block + (sends == (task.channel == Channel::p2p_forward) ? 1 : 0);
}

/// Whether two ranks mean the same by a message: a microbatch's stream across one boundary, or what
/// belongs to a tied table.
bool same_message(const Task& a, const Task& b) {
  return a.operation != b.operation && a.microbatch == b.microbatch && boundary(a) == boundary(b);
}

/// Who meets whom, where all ranks have Programs or one of each stage has.
class Meetings {
 public:
  Meetings(std::span<const Program> programs, const plan::Plan& plan)
      : plan_(plan), all_(int(programs.size()) == plan.devices()) {
    std::vector<int> of_stage(std::size_t(plan.pipeline_size()), 0);
    for (const Program& program : programs) ++of_stage[stage(program.rank)];
    require(all_ || std::ranges::count(of_stage, 1) == plan.pipeline_size(), Failure::bug,
            "{} Programs are neither of all {} ranks nor of one rank a stage", programs.size(),
            plan.devices());
  }

  Key key(const Task& task, int rank) {
    Key key{int(task.channel), {}, 0, 0, 0};
    if (!task.group.empty()) {
      key.parties = plan::members(plan_, rank, task.group);
    } else {
      key.parties =
          all_ ? std::vector{rank, task.peer} : std::vector{stage(rank), stage(task.peer)};
      if (task.operation == Operation::recv) std::swap(key.parties[0], key.parties[1]);
      if (!all_) key.microbatch = task.microbatch;
      // What comes ahead of a tied table's gradient, and the rest, are two messages.
      if (!all_ && (plan_.order.chunks > 1 || task.block < 0)) key.boundary = boundary(task);
    }
    key.sequence = count_[rank][key]++;
    return key;
  }

  /// How many members the transfer must have at least, at most.
  std::pair<std::size_t, std::size_t> members(const Task& task, int rank) const {
    if (!is_transfer(task)) return {1, 1};
    if (task.group.empty()) return {all_ ? 2 : 1, 2};
    const std::vector<int> ranks = plan::members(plan_, rank, task.group);
    if (all_) return {ranks.size(), ranks.size()};
    const std::size_t here =
        task.group.contains(model::Axis::stage) ? std::size_t(plan_.pipeline_size()) : 1;
    return {here, here};
  }

  /// Whether a task is one part of a message between representatives, whose key is the same but for
  /// the sequence in all parts.
  bool is_part(const Task& task) const { return !all_ && task.group.empty() && task.peer >= 0; }

  /// Representatives of stages that differ exchange other parts than they will.
  bool same_bytes(const Task& task) const { return all_ || !task.group.empty(); }

 private:
  int stage(int rank) const { return plan::stage_index(plan_, rank); }

  const plan::Plan& plan_;
  bool all_;
  std::map<int, std::map<Key, int>> count_;  ///< by rank
};

/// The parts of a message, of the representatives that send and receive it.
struct Parts {
  std::vector<Member> sent, received;
};

}  // namespace

Activities::Activities(std::span<const Program> programs, const plan::Plan& plan)
    : of(programs.size()) {
  Meetings meetings(programs, plan);
  std::map<Key, int> found;
  std::map<Key, Parts> messages;  // by the key of the first part
  for (std::size_t p = 0; p < programs.size(); ++p)
    for (std::size_t id = 0; id < programs[p].tasks.size(); ++id) {
      const Task& task = programs[p].tasks[id];
      const Member member{int(p), int(id)};
      int activity = int(members.size());
      if (is_transfer(task)) {
        Key key = meetings.key(task, programs[p].rank);
        activity = found.try_emplace(key, activity).first->second;
        if (meetings.is_part(task)) {
          key.sequence = 0;
          Parts& parts = messages[key];
          (task.operation == Operation::recv ? parts.received : parts.sent).push_back(member);
        }
      }
      if (activity == int(members.size())) {
        members.emplace_back();
        timed.push_back({member});
      }
      members[activity].push_back(member);
      of[p].push_back(activity);
    }
  for (const auto& [first_key, parts] : messages) {
    for (const auto& list : {parts.sent, parts.received})
      for (const Member& m : list) timed[of[m.program][m.task]].clear();
    timed[found.at(first_key)] =
        parts.sent.size() > parts.received.size() ? parts.sent : parts.received;
  }
  for (const auto& activity : members) {
    const Program& program = programs[activity[0].program];
    const Task& first = program.task(activity[0].task);
    const auto [least, most] = meetings.members(first, program.rank);
    bool match = least <= activity.size() && activity.size() <= most;
    for (const Member& member : activity) {
      const Task& task = programs[member.program].task(member.task);
      match = match && task.phase == first.phase &&
              (transfer_bytes(task) == transfer_bytes(first) || !meetings.same_bytes(first)) &&
              (first.peer >= 0 || task.operation == first.operation);
    }
    if (match && first.peer >= 0 && activity.size() == 2 && meetings.same_bytes(first)) {
      const Member& other = activity[1];
      match = same_message(first, programs[other.program].task(other.task));
    }
    if (!match)
      unmatched.push_back(fmt::format(
          "rank {}: '{}' has {} of {} partners, or they differ in kind, size or meaning",
          program.rank, label(first), activity.size(), most));
  }
}

Readiness::Readiness(std::span<const Program> programs, const Activities& activities)
    : programs_(programs),
      activities_(activities),
      queue_(programs.size()),
      next_(programs.size()),
      ready_(activities.members.size(), 0) {
  for (std::size_t p = 0; p < programs.size(); ++p) {
    const std::size_t count = programs[p].tasks.size();
    done_.emplace_back(count, 0);
    announced_.emplace_back(count, 0);
    for (std::size_t id = 0; id < count; ++id)
      queue_[p][std::size_t(programs[p].tasks[id].channel)].push_back(int(id));
    next_[p].fill(0);
  }
}

void Readiness::look(int program, int channel, std::vector<int>& started) {
  const auto p = std::size_t(program), c = std::size_t(channel);
  if (next_[p][c] >= queue_[p][c].size()) return;
  const int id = queue_[p][c][next_[p][c]];
  if (announced_[p][id]) return;
  for (int other : programs_[p].task(id).waits)
    if (!done_[p][other]) return;
  announced_[p][id] = 1;
  const int activity = activities_.of[p][id];
  if (++ready_[activity] == int(activities_.members[activity].size())) started.push_back(activity);
}

std::vector<int> Readiness::start() {
  std::vector<int> started;
  for (std::size_t p = 0; p < programs_.size(); ++p)
    for (int channel = 0; channel < num_channels; ++channel) look(int(p), channel, started);
  return started;
}

std::vector<int> Readiness::finish(int activity) {
  std::vector<int> started;
  for (const Member& member : activities_.members[activity]) {
    const auto p = std::size_t(member.program);
    done_[p][member.task] = 1;
    ++next_[p][std::size_t(programs_[p].task(member.task).channel)];
  }
  // Another channel of the rank may have waited for this one.
  for (const Member& member : activities_.members[activity])
    for (int channel = 0; channel < num_channels; ++channel) look(member.program, channel, started);
  return started;
}

std::vector<std::string> Readiness::blocked() const {
  std::vector<std::string> names;
  for (std::size_t p = 0; p < programs_.size(); ++p)
    for (std::size_t c = 0; c < std::size_t(num_channels); ++c)
      if (next_[p][c] < queue_[p][c].size())
        names.push_back(fmt::format("rank {}: '{}' on {} never starts", programs_[p].rank,
                                    label(programs_[p].task(queue_[p][c][next_[p][c]])),
                                    name(Channel(c))));
  return names;
}

}  // namespace brume::schedule
