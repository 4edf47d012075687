/// @file A plan read, written, and described as JSON or in words.
#include "plan_texts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/text.hpp"
#include "plan/knobs.hpp"
#include "plan/padding.hpp"
#include "planning.hpp"
#include "schedule/node_traffic.hpp"

namespace brume::app {

nlohmann::json described(const plan::Plan& plan, const analyzer::Prediction& prediction) {
  nlohmann::json stages = nlohmann::json::array();
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const plan::Stage& s = plan.stages[i];
    const analyzer::StagePrediction& p = prediction.stages[i];
    nlohmann::json& stage =
        stages.emplace_back(nlohmann::json{{"stable_s", p.time.stable_s()},
                                           {"delta_s", p.time.delta_s()},
                                           {"peak_forward_bytes", p.peak_forward_bytes},
                                           {"peak_backward_bytes", p.peak_backward_bytes}});
    const bool on_disk = plan::uses_disk(s);
    plan::for_members<plan::Stage>(plan::knobs, [&](const plan::Knob& knob, auto member) {
      const bool part = knob.part_of != nullptr;
      if (!part || (knob.on_disk ? on_disk : plan::number(knob, plan, int(i)) > 0.0))
        stage[knob.name] = s.*member;
    });
    if (on_disk) stage["disk_bytes"] = p.disk_bytes;
  }
  nlohmann::json object{{"iteration_s", prediction.iteration_s},
                        {"microbatches", plan.microbatches},
                        {"stages", stages}};
  if (!plan.node_order.empty()) object["node_order"] = plan.node_order;
  return object;
}

void keep(const plan::Plan& plan, const std::string& path) {
  try {
    write_file(path, plan::text(plan));
  } catch (const Error&) {
    print(plan::text(plan));
    throw;
  }
}

plan::Plan load_plan(const std::string& file, Given& given) {
  plan::Plan plan = plan::load(file);
  given.model = plan::padded(std::move(given.model), plan);
  check_given(plan, given.deck, given.model, given.cluster);
  for (int group = 0; group < given.machine.num_groups(); ++group)
    require(plan.node_order.empty() || given.machine.profile(group).levels.empty(), Failure::input,
            "{}: has a node_order, but nodes of a network with levels are numbered unit by unit: "
            "leave it out",
            file);
  return plan;
}

namespace {

/// The slowest pair of nodes that the plan's transfers take; empty where the profile knows of none.
std::string slowest_pair(const plan::Plan& plan, const Given& given) {
  const hardware::Profile& profile = given.machine.profile(0);
  if (given.machine.num_groups() > 1 || profile.slow_pairs.empty()) return {};
  const hardware::SlowPair* slowest = nullptr;
  double taken_s = 0.0;
  for (const auto& [places, seconds] : schedule::node_traffic(plan, given.model, given.machine)) {
    std::vector<int> nodes;
    for (const int place : places) nodes.push_back(plan::node_at(plan, place));
    std::ranges::sort(nodes);
    const hardware::SlowPair* pair = hardware::slowest_pair(profile, nodes);
    if (!pair || (slowest && pair->times < slowest->times)) continue;
    taken_s = (slowest && pair->times == slowest->times ? taken_s : 0.0) + pair->times * seconds;
    slowest = pair;
  }
  if (!slowest) return "slowest link between nodes: as fast as most, no slow one is used\n";
  const auto node = [&](int i) {
    return i < std::ssize(profile.hosts) ? fmt::format("{} ({})", i, profile.hosts[i])
                                         : fmt::format("{}", i);
  };
  return fmt::format(
      "slowest link between nodes: of {} and {}, {:.3g} times as long as most, which holds up {} "
      "of "
      "a step's transfers\n",
      node(slowest->first), node(slowest->second), slowest->times, format_seconds(taken_s));
}

/// The transfers that leave units of a level of the network, and their slowdown. Empty without
/// levels, and for several groups of nodes.
std::string levels(const plan::Plan& plan, const Given& given) {
  std::string text;
  if (given.machine.num_groups() > 1) return text;
  for (const deck::LevelKeys& level : given.machine.profile(0).levels) {
    hardware::Profile profile = given.machine.profile(0);
    profile.levels = {level};
    const hardware::Machine machine(profile);
    std::vector<std::string> parts;
    const auto add = [&](const std::string& what, double times) {
      parts.push_back(times > 1.0 ? fmt::format("{} ({:.3g} times as long)", what, times) : what);
    };
    int leaving = 0;
    double times = 1.0;
    for (int stage = 1; stage < plan.num_stages(); ++stage) {
      const int from = plan::first_rank(plan, stage - 1), to = plan::first_rank(plan, stage);
      const int last_from = from + plan.stages[stage - 1].devices() - 1,
                last_to = to + plan.stages[stage].devices() - 1;
      bool leaves = false;
      for (const auto& [rank, peer] : {std::pair(from, to), {last_from, last_to}}) {
        const price::Ends ends = price::ends(plan, machine, rank, peer);
        leaves = leaves ||
                 (ends.leaves_node && price::node_of(plan, machine, rank).index / level.nodes !=
                                          price::node_of(plan, machine, peer).index / level.nodes);
        times = std::max(times, ends.congestion.times);
      }
      leaving += leaves;
    }
    if (leaving > 0)
      add(fmt::format("messages to {} of {}", leaving, counted(plan.num_stages(), "stage")), times);
    for (const auto& [axis, name] : {std::pair(model::Axis::tp, "tp"),
                                     {model::Axis::cp, "cp"},
                                     {model::Axis::ep, "experts"},
                                     {model::Axis::shard, "shards"},
                                     {model::Axis::replica, "replicas"}}) {
      double most = 1.0;
      for (int stage = 0; stage < plan.num_stages(); ++stage) {
        const price::Ranks ranks =
            price::ranks(plan.stages[stage], axis, price::first_in_unit(plan, machine, stage));
        if (ranks.nodes * ranks.per_node > 1)
          most = std::max(most,
                          hardware::congestion(
                              profile, {ranks.nodes, ranks.extent, ranks.first, ranks.stage_nodes},
                              axis == model::Axis::cp)
                              .times);
      }
      if (most > 1.0) add(fmt::format("exchanges of {}", name), most);
    }
    text +=
        fmt::format("level of {}, oversubscribed {:.3g} times: {}\n", counted(level.nodes, "node"),
                    level.oversubscription,
                    parts.empty() ? "nothing leaves a unit"
                                  : fmt::format("units are left by {}", fmt::join(parts, ", ")));
  }
  return text;
}

}  // namespace

std::string explained(const plan::Plan& plan, const Given& given) {
  return analyzer::explain(plan, given.model, given.machine, given.cluster) +
         slowest_pair(plan, given) + levels(plan, given);
}

}  // namespace brume::app
