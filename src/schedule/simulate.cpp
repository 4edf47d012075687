#include "schedule/simulate.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "activities.hpp"
#include "analyzer/analyzer.hpp"
#include "base/error.hpp"
#include "base/text.hpp"

namespace brume::schedule {
namespace {

/// A group's shape: nodes it spans, ranks on each; of a message also the other rank's node group.
struct Shape {
  int nodes;
  int ranks_per_node;
  int peer_group = -1;  ///< where it differs from the own one

  auto operator<=>(const Shape&) const = default;
};

Shape dp_shape(const plan::Stage& stage) {
  return {stage.nodes, stage.devices_per_node / stage.tp};
}

/// Which node of its group a rank is on.
int node_of(const plan::Plan& plan, int rank, int node_ranks) {
  const int stage = plan::place(plan, rank).stage;
  return (plan::first_device(plan, stage) + rank - plan::rank_of(plan, stage, 0, 0)) / node_ranks;
}

/// Nothing, for what stays on its rank.
Shape shape(const plan::Plan& plan, int rank, const Task& task, const hardware::Machine& machine) {
  const plan::Stage& stage = plan.stages[std::size_t(plan::place(plan, rank).stage)];
  const int node_ranks = machine.profile(stage.group).key.ranks_per_node;
  if (task.group == Group::tp) return {1, stage.tp};
  if (task.group == Group::dp) return dp_shape(stage);
  if (task.group == Group::world) {
    const int per_node = std::min(plan.devices(), node_ranks);
    return {int(ceil_div(plan.devices(), per_node)), per_node};
  }
  if (task.peer < 0) return {0, 0};
  const plan::Stage& other = plan.stages[std::size_t(plan::place(plan, task.peer).stage)];
  if (other.group != stage.group) return {2, 1, machine.index(other.group)};
  return node_of(plan, rank, node_ranks) == node_of(plan, task.peer, node_ranks) ? Shape{1, 2}
                                                                                 : Shape{2, 1};
}

std::int64_t bytes_of(const Task& task, Role role) {
  std::int64_t bytes = 0;
  for (const Operand& operand : task.operands)
    if (operand.role == role) bytes += operand.bytes;
  return bytes;
}

std::int64_t written_bytes(const Task& task) {
  std::int64_t bytes = 0;
  for (const Operand& operand : task.operands)
    if (operand.writes) bytes += operand.bytes;
  return bytes;
}

/// What the time of a task depends on beside its operation: bytes; of a recompute, whether its
/// output is made.
std::int64_t work_bytes(const Task& task) {
  switch (task.operation) {
    case Operation::forward:
    case Operation::backward:
    case Operation::loss: return 0;
    case Operation::recompute: return task.find(Role::output) ? 1 : 0;
    case Operation::all_reduce:
    case Operation::reduce_scatter:
    case Operation::all_gather:
    case Operation::send:
    case Operation::recv: return task.operands[0].bytes;
    case Operation::norm: return bytes_of(task, Role::grads);
    case Operation::optimizer_step: return bytes_of(task, Role::weights);
    case Operation::copy_in:
    case Operation::copy_out:
    case Operation::read:
    case Operation::write:
    case Operation::copy:
    case Operation::clear:
    case Operation::accumulate: return written_bytes(task);
  }
  return 0;
}

double work_s(const Task& task, std::int64_t bytes, const Shape& group, const plan::Stage& stage,
              const model::Config& model, const hardware::Machine& machine) {
  using analyzer::Pass;
  const int own = machine.index(stage.group);
  const hardware::Profile& profile = machine.profile(own);
  const auto segment = [&](Pass pass) {
    return analyzer::segment_s(model, profile, task.segment, pass, stage.microbatch, stage.tp);
  };
  const auto link = [&](const char* kind) {
    return hardware::link_time(profile, kind, group.nodes, group.ranks_per_node, double(bytes));
  };
  switch (task.operation) {
    case Operation::forward: return segment(Pass::forward);
    case Operation::backward: return segment(Pass::backward);
    case Operation::recompute: return segment(bytes > 0 ? Pass::forward : Pass::recompute);
    case Operation::loss: return 0.0;  // a part of the head's forward, priced there
    case Operation::all_reduce: return link("all_reduce");
    case Operation::reduce_scatter: return link("reduce_scatter");
    case Operation::all_gather: return link("all_gather");
    case Operation::send:
    case Operation::recv:
      return group.peer_group < 0 ? link("send")
                                  : machine.crossing_s(own, group.peer_group, double(bytes));
    case Operation::copy_in: return hardware::copy_time(profile, "copy_in", double(bytes));
    case Operation::copy_out: return hardware::copy_time(profile, "copy_out", double(bytes));
    case Operation::read: return hardware::copy_time(profile, "disk_read", double(bytes));
    case Operation::write: return hardware::copy_time(profile, "disk_write", double(bytes));
    case Operation::clear:
    case Operation::accumulate: return 3.0 * double(bytes) / profile.bytes_per_s;
    case Operation::copy: return 2.0 * double(bytes) / profile.bytes_per_s;
    case Operation::norm: return double(bytes) / profile.bytes_per_s;
    case Operation::optimizer_step:
      return analyzer::optimizer_s(profile, double(bytes) / model::weight_bytes(model.precision));
  }
  return 0.0;
}

/// Times of tasks, looked up where an equal one was seen before: most are.
class TaskTimes {
 public:
  TaskTimes(const plan::Plan& plan, const model::Config& model, const hardware::Machine& machine)
      : plan_(plan), model_(model), machine_(machine) {}

  double of(const Task& task, int rank) {
    const int stage = plan::place(plan_, rank).stage;
    const Shape group = shape(plan_, rank, task, machine_);
    const std::int64_t bytes = work_bytes(task);
    const auto [entry, fresh] =
        known_s_.try_emplace({stage, task.operation, task.segment, group, bytes}, 0.0);
    const plan::Stage& own = plan_.stages[std::size_t(stage)];
    if (fresh)
      entry->second = machine_.profile(own.group).task_overhead_s +
                      work_s(task, bytes, group, own, model_, machine_);
    return entry->second;
  }

 private:
  const plan::Plan& plan_;
  const model::Config& model_;
  const hardware::Machine& machine_;
  std::map<std::tuple<int, Operation, model::SegmentKind, Shape, std::int64_t>, double> known_s_;
};

constexpr int no_resource = hardware::num_resources;

/// Which of the four resources of the interference model a channel uses. The disk is none of them:
/// it neither slows others nor is slowed.
int resource(Channel channel) {
  switch (channel) {
    case Channel::compute: return 0;
    case Channel::h2d: return 2;
    case Channel::d2h: return 3;
    case Channel::disk: return no_resource;
    default: return 1;
  }
}

/// Activities in flight, slowed by what else runs on their ranks.
class Clockwork {
 public:
  /// @param slow  [program]
  Clockwork(std::span<const Program> programs, const Activities& activities,
            std::vector<hardware::Interference> slow)
      : programs_(programs),
        activities_(activities),
        slow_(std::move(slow)),
        busy_(programs.size()) {}

  void start(int activity, double work_s) {
    running_.push_back({activity, work_s});
    count(activity, 1);
  }

  bool idle() const { return running_.empty(); }

  /// Lets time pass until the next activity ends. @return that activity
  int next(double& now_s) {
    double least_s = std::numeric_limits<double>::infinity();
    std::size_t ends = 0;
    for (std::size_t i = 0; i < running_.size(); ++i) {
      running_[i].slowdown = slowdown(running_[i].activity);
      const double left_s = running_[i].work_s * running_[i].slowdown;
      if (left_s < least_s) least_s = left_s, ends = i;
    }
    for (Running& r : running_) r.work_s = std::max(0.0, r.work_s - least_s / r.slowdown);
    now_s += least_s;
    const int activity = running_[ends].activity;
    running_[ends] = running_.back();
    running_.pop_back();
    count(activity, -1);
    return activity;
  }

 private:
  struct Running {
    int activity;
    double work_s;  ///< left, at full speed
    double slowdown = 1.0;
  };

  Channel channel(const Member& member) const {
    return programs_[std::size_t(member.program)].tasks[std::size_t(member.task)].channel;
  }
  void count(int activity, int change) {
    for (const Member& member : activities_.members[std::size_t(activity)])
      busy_[std::size_t(member.program)][std::size_t(resource(channel(member)))] += change;
  }
  /// The slowest member holds the others.
  double slowdown(int activity) const {
    double worst = 1.0;
    for (const Member& member : activities_.members[std::size_t(activity)]) {
      const auto mine = std::size_t(resource(channel(member)));
      if (mine == no_resource) continue;
      double sum = 1.0;
      for (std::size_t other = 0; other < hardware::num_resources; ++other)
        if (other != mine && busy_[std::size_t(member.program)][other] > 0)
          sum += slow_[std::size_t(member.program)].added[mine][other];
      worst = std::max(worst, sum);
    }
    return worst;
  }

  std::span<const Program> programs_;
  const Activities& activities_;
  std::vector<hardware::Interference> slow_;
  /// [program] tasks in flight a resource, and on the disk
  std::vector<std::array<int, hardware::num_resources + 1>> busy_;
  std::vector<Running> running_;
};

}  // namespace

std::vector<int> group_ranks(const plan::Plan& plan, int rank, Group group) {
  const plan::Place place = plan::place(plan, rank);
  const plan::Stage& stage = plan.stages[std::size_t(place.stage)];
  std::vector<int> ranks;
  switch (group) {
    case Group::none: return {rank};
    case Group::tp:
      for (int t = 0; t < stage.tp; ++t)
        ranks.push_back(plan::rank_of(plan, place.stage, place.dp_rank, t));
      return ranks;
    case Group::dp:
      for (int d = 0; d < stage.dp; ++d)
        ranks.push_back(plan::rank_of(plan, place.stage, d, place.tp_rank));
      return ranks;
    case Group::world:
      ranks.resize(std::size_t(plan.devices()));
      std::iota(ranks.begin(), ranks.end(), 0);
      return ranks;
  }
  return ranks;
}

double task_s(const Task& task, const Program& program, const plan::Plan& plan,
              const model::Config& model, const hardware::Machine& machine) {
  return TaskTimes(plan, model, machine).of(task, program.rank);
}

Simulation simulate(std::span<const Program> programs, const plan::Plan& plan,
                    const model::Config& model, const hardware::Machine& machine,
                    const Deadline& deadline) {
  const Activities activities(programs, plan);
  require(activities.unmatched.empty(), Failure::bug, "{}",
          activities.unmatched.empty() ? "" : activities.unmatched[0]);
  Readiness readiness(programs, activities);
  std::vector<hardware::Interference> slow;
  for (const Program& program : programs) {
    const plan::Stage& stage = plan.stages[std::size_t(plan::place(plan, program.rank).stage)];
    const Shape dp = dp_shape(stage);
    slow.push_back(machine.profile(stage.group).interference_model(dp.nodes, dp.ranks_per_node));
  }
  Clockwork clockwork(programs, activities, std::move(slow));
  TaskTimes times(plan, model, machine);
  Simulation simulation;
  for (const Program& program : programs) simulation.spans.emplace_back(program.tasks.size());

  double now_s = 0.0;
  const auto start = [&](const std::vector<int>& started) {
    for (int activity : started) {
      const auto& members = activities.members[std::size_t(activity)];
      const Program& program = programs[std::size_t(members[0].program)];
      const Task& task = program.tasks[std::size_t(members[0].task)];
      clockwork.start(activity, times.of(task, program.rank));
      for (const Member& m : members)
        simulation.spans[std::size_t(m.program)][std::size_t(m.task)].start_s = now_s;
    }
  };
  start(readiness.start());
  while (!clockwork.idle()) {
    deadline.check();
    const int activity = clockwork.next(now_s);
    for (const Member& m : activities.members[std::size_t(activity)])
      simulation.spans[std::size_t(m.program)][std::size_t(m.task)].end_s = now_s;
    start(readiness.finish(activity));
  }
  const std::vector<std::string> blocked = readiness.blocked();
  require(blocked.empty(), Failure::bug, "the schedule deadlocks: {}",
          blocked.empty() ? "" : blocked[0]);
  simulation.iteration_s = now_s;
  return simulation;
}

}  // namespace brume::schedule
