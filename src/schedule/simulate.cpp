#include "schedule/simulate.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "activities.hpp"
#include "base/error.hpp"
#include "price/price.hpp"
#include "task_time.hpp"

namespace brume::schedule {
namespace {

constexpr int no_resource = hardware::num_resources;

/// How what works at once on a rank slows each other.
struct Beside {
  hardware::Interference slow;
  bool host_is_apart;  ///< the node's processor is not what kernels compute on
};

/// Which of the four resources of the interference model a channel uses. The disk is none of them:
/// it neither slows others nor is slowed; nor is a processor beside a device.
int resource(Channel channel, const Beside& beside) {
  switch (channel) {
    case Channel::compute: return 0;
    case Channel::h2d: return 2;
    case Channel::d2h: return 3;
    case Channel::disk: return no_resource;
    case Channel::host: return beside.host_is_apart ? no_resource : 0;
    default: return 1;
  }
}

/// Activities in flight, slowed by what else runs on their ranks.
class Clockwork {
 public:
  /// @param beside  [program]
  Clockwork(std::span<const Program> programs, const Activities& activities,
            std::vector<Beside> beside)
      : programs_(programs),
        activities_(activities),
        beside_(std::move(beside)),
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

  std::size_t resource_of(const Member& member) const {
    const auto program = std::size_t(member.program);
    return std::size_t(resource(programs_[program].task(member.task).channel, beside_[program]));
  }
  void count(int activity, int change) {
    for (const Member& member : activities_.members[activity])
      busy_[member.program][resource_of(member)] += change;
  }
  /// The slowest member holds the others. What shares the cores of one rank takes turns.
  double slowdown(int activity) const {
    double worst = 1.0;
    for (const Member& member : activities_.members[activity]) {
      const std::size_t mine = resource_of(member);
      if (mine == no_resource) continue;
      const auto& busy = busy_[member.program];
      double sum = mine == 0 ? double(busy[mine]) : 1.0;
      for (std::size_t other = 0; other < hardware::num_resources; ++other)
        if (other != mine && busy[other] > 0)
          sum += beside_[member.program].slow.added[mine][other];
      worst = std::max(worst, sum);
    }
    return worst;
  }

  std::span<const Program> programs_;
  const Activities& activities_;
  std::vector<Beside> beside_;
  /// [program] tasks in flight a resource, and on none of them
  std::vector<std::array<int, hardware::num_resources + 1>> busy_;
  std::vector<Running> running_;
};

}  // namespace

double task_s(const Task& task, const Program& program, const plan::Plan& plan,
              const model::Config& model, const hardware::Machine& machine) {
  return TaskTimes(plan, model, machine).of(task, program.rank);
}

Simulation simulate(std::span<const Program> programs, const plan::Plan& plan,
                    const model::Config& model, const hardware::Machine& machine,
                    const Deadline& deadline, const Pace& pace) {
  const Activities activities(programs, plan);
  require(activities.unmatched.empty(), Failure::bug, "{}",
          activities.unmatched.empty() ? "" : activities.unmatched[0]);
  Readiness readiness(programs, activities);
  std::vector<Beside> beside;
  for (const Program& program : programs) {
    const plan::Stage& stage = plan.stages[plan::stage_index(plan, program.rank)];
    const price::Ranks shards = price::ranks(stage, model::Axis::shard);
    const hardware::Profile& profile = machine.profile(stage.group);
    beside.push_back(
        {profile.interference_model(shards.nodes, shards.per_node), price::host_is_apart(profile)});
  }
  Clockwork clockwork(programs, activities, std::move(beside));
  TaskTimes times(plan, model, machine);
  Simulation simulation;
  for (const Program& program : programs) simulation.spans.emplace_back(program.tasks.size());

  double now_s = 0.0;
  const auto start = [&](const std::vector<int>& started) {
    for (int activity : started) {
      double work_s = 0.0;
      for (const Member& m : activities.timed[activity]) {
        const Program& program = programs[m.program];
        const Task& task = program.task(m.task);
        const double once_s = times.of(task, program.rank);
        work_s += pace.empty() ? once_s
                               : once_s * pace.at(std::size_t(plan::stage_index(
                                              plan, program.rank)))[std::size_t(task.channel)];
      }
      clockwork.start(activity, work_s);
      for (const Member& m : activities.members[activity])
        simulation.spans[m.program][m.task].start_s = now_s;
    }
  };
  start(readiness.start());
  while (!clockwork.idle()) {
    deadline.check();
    const int activity = clockwork.next(now_s);
    for (const Member& m : activities.members[activity])
      simulation.spans[m.program][m.task].end_s = now_s;
    start(readiness.finish(activity));
  }
  const std::vector<std::string> blocked = readiness.blocked();
  require(blocked.empty(), Failure::bug, "the schedule deadlocks: {}",
          blocked.empty() ? "" : blocked[0]);
  simulation.iteration_s = now_s;
  return simulation;
}

}  // namespace brume::schedule
