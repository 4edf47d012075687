#include "advice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <utility>

#include "analyzer/analyzer.hpp"
#include "base/deadline.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "deck/deck.hpp"
#include "fit.hpp"
#include "hardware/machine.hpp"
#include "model/model.hpp"
#include "plan/knobs.hpp"
#include "plan/padding.hpp"
#include "schedule/account.hpp"
#include "schedule/compile.hpp"
#include "schedule/simulate.hpp"

namespace brume::app {
namespace {

using schedule::Channel;

constexpr double worth_a_change = 0.01;
constexpr double longest_s = 20.0;  ///< for all of it

/// A plan near the run's own.
struct Neighbour {
  plan::Plan plan;
  std::string what;
  int stage = -1;
};

/// How much longer than predicted each stage's channels took, on its slowest rank.
schedule::Pace measured_pace(const report::Run& run) {
  std::array<double, schedule::num_channels> once;
  once.fill(1.0);
  schedule::Pace pace(std::size_t(run.plan.pipeline_size()), once);
  for (const Channel channel : schedule::own_channels) {
    std::vector<double> measured(pace.size()), predicted(pace.size());
    const auto take = [&](const std::vector<io::RankTimeline>& timelines,
                          std::vector<double>& most_s) {
      for (const io::RankTimeline& timeline : timelines) {
        if (timeline.rank >= run.plan.devices()) continue;
        double& most = most_s[plan::stage_index(run.plan, timeline.rank)];
        most = std::max(most, io::busy_s(timeline, channel));
      }
    };
    take(run.trace.measured, measured);
    take(run.trace.predicted, predicted);
    for (std::size_t stage = 0; stage < pace.size(); ++stage)
      if (measured[stage] > 0.0 && predicted[stage] > 0.0)
        pace[stage][std::size_t(channel)] = measured[stage] / predicted[stage];
  }
  return pace;
}

/// Layers lie in the order of stages.
void place_layers(plan::Plan& plan) {
  int first = 0;
  for (plan::Stage& stage : plan.stages) {
    stage.first_layer = std::exchange(first, first + stage.layers);
    stage.ckpt_layers = std::min(stage.ckpt_layers, stage.layers);
    stage.stored_layers = std::min(stage.stored_layers, stage.layers - stage.ckpt_layers);
  }
}

void add_moves(const plan::Plan& plan, std::vector<Neighbour>& all) {
  for (int from = 0; from < plan.num_stages(); ++from)
    for (int to = 0; to < plan.num_stages(); ++to) {
      const int least = plan.may_lack_layers(from) ? 0 : 1;
      if (from == to || plan.stages[from].layers <= least) continue;
      Neighbour moved{plan, fmt::format("one layer to stage {}", to), from};
      --moved.plan.stages[from].layers;
      ++moved.plan.stages[to].layers;
      place_layers(moved.plan);
      all.push_back(std::move(moved));
    }
}

/// Microbatches of another size, as many as are left.
void add_microbatches(const plan::Plan& plan, std::vector<Neighbour>& all) {
  for (const bool larger : {true, false}) {
    Neighbour other{plan, "", -1};
    bool divides = larger ? plan.microbatches % 2 == 0 : true;
    for (plan::Stage& stage : other.plan.stages) {
      divides = divides && (larger || stage.microbatch % 2 == 0);
      stage.microbatch = larger ? 2 * stage.microbatch : stage.microbatch / 2;
    }
    if (!divides) continue;
    other.plan.microbatches = larger ? plan.microbatches / 2 : 2 * plan.microbatches;
    other.what = fmt::format("microbatches {} as large", larger ? "twice" : "half");
    all.push_back(std::move(other));
  }
}

/// Less of what saves memory.
void add_savings(const plan::Plan& plan, std::vector<Neighbour>& all) {
  const auto add = [&](const char* what, auto&& change) {
    Neighbour other{plan, what, -1};
    for (plan::Stage& stage : other.plan.stages) change(stage);
    if (!(other.plan == plan)) all.push_back(std::move(other));
  };
  add("no recomputation", [](plan::Stage& stage) { stage.ckpt_layers = 0; });
  add("a ZeRO level less",
      [](plan::Stage& stage) { stage.zero_level = std::max(0, stage.zero_level - 1); });
  add("no offload", [](plan::Stage& stage) {
    for (const plan::Share& share : plan::shares) stage.*share.ratio = 0.0;
  });
}

std::vector<Neighbour> neighbours(const plan::Plan& plan) {
  std::vector<Neighbour> all;
  add_moves(plan, all);
  add_microbatches(plan, all);
  add_savings(plan, all);
  if (plan.num_stages() > 1) {
    Neighbour other{plan, fmt::format("run_ahead = {}", plan.order.run_ahead > 1 ? 1 : 2), -1};
    other.plan.order.run_ahead = plan.order.run_ahead > 1 ? 1 : 2;
    all.push_back(std::move(other));
  }
  return all;
}

/// An iteration of a plan at the measured pace [s], by one rank of each stage.
double iteration_s(const plan::Plan& plan, const model::Config& model,
                   const hardware::Machine& machine, const schedule::Pace& pace,
                   const Deadline& deadline) {
  std::vector<schedule::Program> programs;
  for (int stage = 0; stage < plan.pipeline_size(); ++stage)
    programs.push_back(schedule::compile(plan, model, plan::first_rank(plan, stage),
                                         {.tight = false, .deadline = deadline}));
  return schedule::simulate(programs, plan, model, machine, deadline, pace).iteration_s;
}

/// Whether the plan can be run where the run was.
bool can_run(const plan::Plan& plan, const model::Config& model, const hardware::Machine& machine,
             const hardware::Cluster& cluster) {
  try {
    plan::check(plan, model, cluster);
  } catch (const Error&) {
    return false;
  }
  const analyzer::Prediction prediction = predict(plan, model, machine, cluster);
  return misfits(plan, stage_needs(plan, prediction, cluster)).empty();
}

std::vector<report::Change> found(const report::Run& run) {
  const deck::Deck deck = deck::parse(run.description.deck_text, run.name);
  const model::Config model =
      plan::padded(model::config(deck.model, deck.training.precision), run.plan);
  const hardware::Machine machine =
      hardware::parse_machine(run.description.profile_text, run.name, deck.cluster);
  const hardware::Cluster cluster = hardware::usable(hardware::cluster(deck.cluster), machine);
  const schedule::Pace pace = measured_pace(run);
  const Deadline deadline(longest_s);
  const double own_s = iteration_s(run.plan, model, machine, pace, deadline);
  std::vector<report::Change> changes;
  try {
    for (const Neighbour& other : neighbours(run.plan)) {
      if (!can_run(other.plan, model, machine, cluster)) continue;
      const double gain = 1.0 - iteration_s(other.plan, model, machine, pace, deadline) / own_s;
      if (gain > worth_a_change) changes.push_back({other.what, gain, other.stage});
    }
  } catch (const OutOfTime&) {
    log::debug("a plan of {} devices has more neighbours than {:.0f} s suffice for",
               run.plan.devices(), longest_s);
  }
  std::ranges::stable_sort(changes, std::ranges::greater{}, &report::Change::gain);
  return changes;
}

}  // namespace

std::optional<std::vector<report::Change>> changes(const report::Run& run) {
  if (run.trace.measured.empty() || run.trace.predicted.empty()) return {};
  try {
    return found(run);
  } catch (const std::exception& error) {
    log::debug("{}: no plan can be compared with: {}", run.name, error.what());
    return {};
  }
}

}  // namespace brume::app
