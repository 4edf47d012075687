/// @file Accounts of step time and device memory, per stage.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/deadline.hpp"
#include "hardware/machine.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "schedule/program.hpp"
#include "schedule/simulate.hpp"

namespace brume::schedule {

/// Activity of a rank. If several are concurrent, the first in this list counts, so later ones are
/// exposed.
enum class Activity : std::uint8_t {
  computing,
  recomputing,
  updating,  ///< optimizer, norm, and other passes over state and gradients
  collective_tp,
  collective_dp,
  copying,    ///< copies to and from CPU memory and disk
  messaging,  ///< messages between stages
  waiting,
};
inline constexpr int num_activities = 8;
const char* name(Activity activity);
Activity activity(const Task& task);
/// Activity that a task's channel implies: everything that computes is computing.
Activity activity(Channel channel);

/// True for activities that a rank can measure alone; in collectives and messages it waits for
/// others.
inline constexpr std::array own_channels{Channel::compute, Channel::h2d, Channel::d2h,
                                         Channel::disk, Channel::host};

/// Seconds of an iteration that a rank spends on each activity.
using Seconds = std::array<double, num_activities>;
/// @param activities   [task]
/// @param spans        [task]; what lies outside of the iteration does not count
/// @param iteration_s  that the seconds add up to
Seconds seconds(std::span<const Activity> activities, std::span<const Span> spans,
                double iteration_s);

inline constexpr int num_contents = int(Content::totals) + 1;

/// Bytes on the device at its fullest moment, by what they hold.
std::array<std::int64_t, num_contents> live_by_content(const Program& program);

/// Account of the first rank of a stage, with all stages on it.
struct StageAccount {
  Seconds seconds{};                                      ///< they add up to the iteration
  std::array<std::int64_t, num_contents> device_bytes{};  ///< live at its fullest moment
};

struct Account {
  double iteration_s = 0.0;
  std::vector<StageAccount> stages;

  /// Share of the devices' time in which they neither work nor move anything.
  double waiting_share(const plan::Plan& plan) const;
};

/// A simulated iteration, taken apart.
/// @param programs  in the order of ranks, the first one of each stage among them
Account account(const plan::Plan& plan, std::span<const Program> programs,
                const Simulation& simulation);
/// The same: of `simulated_ranks`, or where there are none that of which
/// `steady_time` says how long it takes.
/// @throws OutOfTime when the deadline passes
Account account(const plan::Plan& plan, const model::Config& model,
                const hardware::Machine& machine, int threads = 1, const Deadline& deadline = {});

}  // namespace brume::schedule
