/// @file The verbs that plan without training: plan, analyze, simulate, check, and those beside
/// them.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "all_ranks.hpp"
#include "base/error.hpp"
#include "base/files.hpp"
#include "base/log.hpp"
#include "base/parallel.hpp"
#include "base/terminal.hpp"
#include "base/text.hpp"
#include "comm/agree.hpp"
#include "fit.hpp"
#include "given.hpp"
#include "io/trace.hpp"
#include "kernels/narrow.hpp"
#include "mist/case.hpp"
#include "mist/deck.hpp"
#include "outlook.hpp"
#include "plan/knobs.hpp"
#include "planning.hpp"
#include "prepare.hpp"
#include "profiles.hpp"
#include "report/figure.hpp"
#include "report/plan_page.hpp"
#include "run_settings.hpp"
#include "schedule/account.hpp"
#include "schedule/compile.hpp"
#include "schedule/node_traffic.hpp"
#include "schedule/simulate.hpp"
#include "search_watch.hpp"
#include "tuner/tuner.hpp"
#include "verbs.hpp"

namespace brume::app {
namespace {

using nlohmann::json;

/// One plan with its prediction in the form every planning verb prints.
json described(const plan::Plan& plan, const analyzer::Prediction& prediction) {
  json stages = json::array();
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const plan::Stage& s = plan.stages[i];
    const analyzer::StagePrediction& p = prediction.stages[i];
    json& stage = stages.emplace_back(json{{"stable_s", p.time.stable_s()},
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
  json object{{"iteration_s", prediction.iteration_s},
              {"microbatches", plan.microbatches},
              {"stages", stages}};
  if (!plan.node_order.empty()) object["node_order"] = plan.node_order;
  return object;
}

json described(const StageNeed& needs) {
  json object;
  for (const auto& [name, need] :
       {std::pair("device", needs.device), std::pair("node_host", needs.host),
        std::pair("node_disk", needs.disk)}) {
    object[std::string(name) + "_bytes"] = need.bytes;
    object[std::string(name) + "_limit_bytes"] = need.limit_bytes;
  }
  return object;
}

/// Writes the plan that was searched, or, where that fails after all, shows it.
void keep(const plan::Plan& plan, const std::string& path) {
  try {
    write_file(path, plan::text(plan));
  } catch (const Error&) {
    print(plan::text(plan));
    throw;
  }
}

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

std::string explained(const plan::Plan& plan, const Given& given) {
  return analyzer::explain(plan, given.model, given.machine, given.cluster) +
         slowest_pair(plan, given) + levels(plan, given);
}

plan::Plan load_plan(const std::string& file, const Given& given) {
  plan::Plan plan = plan::load(file);
  check_given(plan, given.deck, given.model, given.cluster);
  for (int group = 0; group < given.machine.num_groups(); ++group)
    require(plan.node_order.empty() || given.machine.profile(group).levels.empty(), Failure::input,
            "{}: has a node_order, but nodes of a network with levels are numbered unit by unit: "
            "leave it out",
            file);
  return plan;
}

/// A plan that somebody uses, beside the best one.
struct Other {
  Other(const PlanOptions& options, const Given& given) : path(options.against) {
    plan = load_plan(path, given);
    const analyzer::Prediction prediction =
        predict(plan, given.model, given.machine, given.cluster);
    misfits = app::misfits(plan, stage_needs(plan, prediction, given.cluster));
    iteration_s = schedule::account(plan, given.model, given.machine, num_cores()).iteration_s;
  }

  std::string text(double best_s) const {
    constexpr double alike = 0.005;
    const double ratio = iteration_s / best_s;
    const std::string than =
        std::abs(ratio - 1.0) < alike ? "as fast as the best plan"
        : ratio > 1.0                 ? fmt::format("the best plan is {:.2f} times as fast", ratio)
                      : fmt::format("{:.2f} times as fast as the best plan here", 1.0 / ratio);
    return fmt::format("against {}: {} simulated; {}{}\n", path, format_seconds(iteration_s), than,
                       misfits.empty() ? "" : ", but: " + misfits.front());
  }

  std::string path;
  plan::Plan plan;
  std::vector<std::string> misfits;
  double iteration_s = 0.0;  ///< simulated
};

/// What Mist's analyzer says of the plan.
int analyze_as_mist(const PlanOptions& options, const Given& given) {
  const plan::Plan plan = load_plan(options.plan, given);
  const deck::AnalysisKeys& keys = given.deck.analysis;
  const mist::Case mist = mist::case_of(
      plan, given.model, given.machine.profile(0), given.cluster,
      {.plain_attention = keys.plain_attention, .ends_data_parallel = keys.ends == "dp"});
  const analyzer::Prediction prediction = mist::described(mist);
  if (options.json) {
    print(described(plan, prediction).dump(2) + "\n");
    return 0;
  }
  print(fmt::format("{}step time by Mist's counting: {:.9f} s\n",
                    plan::table(plan, terminal::columns(STDOUT_FILENO)), prediction.iteration_s));
  if (options.explain) print(mist::explain(plan, mist, given.machine.profile(0)));
  return 0;
}

/// The fastest plan by Mist's counting, in the deck's search space.
int plan_as_mist(const PlanOptions& options, const Given& given) {
  const mist::Job job = mist::job_of(given.model, given.deck.training.global_batch, given.cluster,
                                     given.machine.profile(0), given.deck.analysis.plain_attention);
  const mist::Tuned tuned = mist::tune(job, mist::space_of(given.deck));
  const plan::Plan plan = mist::plan_of(tuned.plan);
  plan::check(plan, given.model, given.cluster);
  log::info("{}step time by Mist's counting: {:.9f} s; searched {} of {} shapes in {}",
            plan::table(plan, terminal::columns(STDERR_FILENO)), tuned.prediction.iteration_s,
            tuned.search.searched, tuned.search.shapes, format_seconds(tuned.search.seconds));
  if (options.explain) log::info("{}", mist::explain(plan, tuned.plan, given.machine.profile(0)));
  if (!options.output.empty()) keep(plan, options.output);
  if (options.json) {
    json object = described(plan, mist::described(tuned.plan));
    object["search"] = {{"seconds", tuned.search.seconds},
                        {"policies", tuned.search.strategies},
                        {"evaluations", tuned.search.candidates},
                        {"milp_solves", 0},
                        {"gap", 0.0}};
    print(object.dump(2) + "\n");
  } else if (options.output.empty()) {
    print(plan::text(plan));
  }
  return 0;
}

/// The picture of a search's result.
report::PlanPage pictured(const Given& given, const tuner::Result& result, const Outlook& look,
                          std::string title, std::string text) {
  constexpr int most_simulated = 64;  // devices
  const tuner::RankedPlan& best = result.best.front();
  report::PlanPage page{.title = std::move(title),
                        .plan = best.plan,
                        .account = look.account,
                        .memory = memory_by_kind(look, best.plan, given.machine,
                                                 hardware::cluster(given.deck.cluster)),
                        .timelines = {},
                        .alternatives = {},
                        .without = {},
                        .text = std::move(text)};
  if (best.plan.devices() <= most_simulated) {
    const auto programs = schedule::compile_all(best.plan, given.model, {.tight = false});
    const auto simulation = schedule::simulate(programs, best.plan, given.model, given.machine);
    const std::vector<io::RankTimeline> all = timelines(programs, simulation);
    page.end_s = simulation.iteration_s;
    for (int stage = 0; stage < best.plan.pipeline_size(); ++stage)
      page.timelines.push_back(all[plan::first_rank(best.plan, stage)]);
  }
  for (const tuner::RankedPlan& other : result.best)
    page.alternatives.push_back({tuner::summary(other.plan), other.seconds(),
                                 double(other.placed_device_bytes()),
                                 double(other.placed_host_bytes())});
  for (const tuner::Ablation& without : result.ablations)
    if (without.iteration_s) page.without.push_back({without.knob, *without.iteration_s});
  return page;
}

/// What a plan takes that need not be one that another trainer can run.
std::string without_trainer(const Given& given, deck::SearchKeys keys, double best_s) {
  const std::string trainer = std::exchange(keys.trainer, "");
  keys.simulate_top = 1;
  const double free_s =
      search(given.deck, keys, given.model, given.cluster, given.machine, {.reasons = false})
          .best[0]
          .seconds();
  return fmt::format("for {}: {} per step; the best plan of all takes {} ({:+.1f} %)", trainer,
                     format_seconds(best_s), format_seconds(free_s),
                     100.0 * (free_s / best_s - 1.0));
}

}  // namespace

int plan(const PlanOptions& options) {
  for (const std::string& file : {options.output, options.html, options.svg})
    if (!file.empty()) check_writable(file);
  const Given given(options);
  if (given.deck.analysis.mist()) return plan_as_mist(options, given);
  std::optional<Other> other;
  if (!options.against.empty()) other.emplace(options, given);
  deck::SearchKeys keys = given.deck.search;
  keys.simulate_top = std::max(keys.simulate_top, options.top);
  const tuner::Result result = [&] {
    SearchWatch watch(keys.time_limit_s, SearchWatch::Interrupt::ends_search);
    return search(given.deck, keys, given.model, given.cluster, given.machine, watch.options());
  }();
  const tuner::RankedPlan& best = result.best.front();
  const Outlook look = outlook(given.deck, given.model, given.machine, best.plan, best.account);
  const auto said = [&](std::size_t columns) {
    return text(result, look, given.deck, given.machine, given.cluster, columns);
  };
  log::info("{}", said(terminal::columns(STDERR_FILENO)));
  if (!options.html.empty() || !options.svg.empty()) {
    const report::PlanPage page =
        pictured(given, result, look, "Plan for " + options.deck, said(usual_columns));
    if (!options.html.empty()) write_file(options.html, report::html(page));
    if (!options.svg.empty()) write_file(options.svg, report::figure(page));
  }
  if (other) log::info("{}", other->text(best.seconds()));
  if (options.explain) log::info("{}", explained(best.plan, given));
  if (!options.output.empty()) keep(best.plan, options.output);
  if (options.json) {
    json object = described(best.plan, best.prediction);
    const tuner::Search& s = result.search;
    object["search"] = {{"seconds", s.seconds},           {"policies", s.policies},
                        {"evaluations", s.evaluations},   {"dynamic_programs", s.dynamic_programs},
                        {"milp_solves", s.milp_solves},   {"gap", s.gap},
                        {"least_work_s", s.least_work_s}, {"confirmed", s.confirmed},
                        {"cut_short", s.cut_short},       {"interrupted", s.interrupted}};
    object["top"] = json::array();
    for (const tuner::RankedPlan& candidate : result.best) {
      json& other = object["top"].emplace_back(described(candidate.plan, candidate.prediction));
      other["simulated_s"] = candidate.simulated_s ? json(*candidate.simulated_s) : json();
      other["placed_device_bytes"] = candidate.placed_device_bytes();
      other["placed_host_bytes"] = candidate.placed_host_bytes();
      if (candidate.placed_disk_bytes() > 0)
        other["placed_disk_bytes"] = candidate.placed_disk_bytes();
    }
    object["without"] = json::object();
    for (const tuner::Ablation& ablation : result.ablations)
      object["without"][ablation.knob] =
          ablation.iteration_s ? json(*ablation.iteration_s) : json();
    if (!result.untried.empty()) object["untried"] = result.untried;
    for (const tuner::Faster& other : result.faster)
      object["faster"][other.key] = {{"value", other.value}, {"iteration_s", other.iteration_s}};
    object["outlook"] = described(look, best.plan);
    if (other)
      object["against"] = {{"iteration_s", other->iteration_s}, {"misfits", other->misfits}};
    print(object.dump(2) + "\n");
  } else if (options.output.empty()) {
    print(plan::text(best.plan));
  }
  // The plan is out by now, whatever ends another search.
  if (!keys.trainer.empty()) log::info("{}", without_trainer(given, keys, best.seconds()));
  return 0;
}

int analyze(const PlanOptions& options) {
  const Given given(options);
  if (given.deck.analysis.mist()) return analyze_as_mist(options, given);
  const plan::Plan plan = load_plan(options.plan, given);
  const analyzer::Prediction prediction = predict(plan, given.model, given.machine, given.cluster);
  const std::vector<StageNeed> needs = stage_needs(plan, prediction, given.cluster);
  const bool fits = misfits(plan, needs).empty();
  const Outlook look = outlook(given.deck, given.model, given.machine, plan);
  if (options.json) {
    json object = described(plan, prediction);
    for (std::size_t i = 0; i < needs.size(); ++i)
      object["stages"][i]["needs"] = described(needs[i]);
    object["fits"] = fits;
    object["misfits"] = misfits(plan, needs);
    object["outlook"] = described(look, plan);
    print(object.dump(2) + "\n");
  } else {
    const std::size_t columns = terminal::columns(STDOUT_FILENO);
    print(wrapped(
        fmt::format(
            "{}{}step time: {} predicted, {} simulated\n{}{}", plan::table(plan, columns),
            fit_text(plan, needs, columns), format_seconds(prediction.iteration_s),
            format_seconds(look.account.iteration_s), text(look, plan),
            tables(look, plan, given.machine, hardware::cluster(given.deck.cluster), columns)),
        columns));
    if (options.explain) print(explained(plan, given));
  }
  return fits ? 0 : int(Failure::infeasible);
}

int simulate(const PlanOptions& options) {
  const Given given(options);
  refuse_mist(given.deck, "simulate");
  const plan::Plan plan = load_plan(options.plan, given);
  const std::vector<schedule::Program> programs = schedule::compile_all(plan, given.model);
  check_memory(programs, plan, given.cluster);
  const schedule::Simulation simulation =
      schedule::simulate(programs, plan, given.model, given.machine);
  if (!options.trace.empty()) io::write_trace(options.trace, {}, timelines(programs, simulation));
  if (options.json) {
    json object = described(plan, predict(plan, given.model, given.machine, given.cluster));
    object["iteration_s"] = simulation.iteration_s;
    print(object.dump(2) + "\n");
    return 0;
  }
  print(fmt::format("{}simulated step time: {}\n",
                    plan::table(plan, terminal::columns(STDOUT_FILENO)),
                    format_seconds(simulation.iteration_s)));
  return 0;
}

namespace {

/// A deck may be made before what it names; then whoever checks it wants to know.
void say_missing(const deck::Deck& deck) {
  const deck::DataKeys& data = deck.data;
  std::vector<std::pair<const char*, std::string>> files{
      {"data.train", data.train},
      {"data.valid", data.valid},
      {"training.samples.prompts", deck.training.samples.prompts}};
  for (const std::string& file : data.files) files.emplace_back("data.files", file);
  std::error_code none;
  for (const auto& [key, file] : files)
    if (!file.empty() && !std::filesystem::exists(file, none))
      log::warn("{} = {}: there is no such file yet, as seen from this folder", key, file);
  for (const deck::GroupKeys& group : deck.cluster.all_groups()) try {
      if (!group.profile.empty()) hardware::load_profile(group.profile);
    } catch (const Error& error) {
      log::warn("{}", error.what());
    }
}

}  // namespace

int check(const DeckOptions& options) {
  const deck::Deck deck = load_deck(options.deck, options.sets);
  const model::Config model = model::config(deck.model, deck.training.precision);
  require_groups_fit(deck, model);
  plan::check_model(model, hardware::cluster(deck.cluster));
  print(deck::schema().write(deck, true));
  if (const std::string frozen = model::frozen_text(model); !frozen.empty())
    log::info("frozen: {}", frozen);
  say_missing(deck);
  return 0;
}

int profile(const ProfileOptions& options) {
  return on_all_ranks([&](comm::Session& session, comm::Communicator& world) {
    const deck::Deck deck = load_deck(world, session.ranks_per_node(), options.deck, options.sets);
    kernels::allow_tf32(deck.training.tf32);
    const hardware::Profile measured = measure_profile(
        world, session.ranks_per_node(), deck, model::config(deck.model, deck.training.precision),
        purpose_of(options.purpose));
    comm::together(world, [&] {
      if (world.rank() == 0) hardware::save_profile(measured, options.output);
    });
    return 0;
  });
}

}  // namespace brume::app
