/// @file The commands that plan without training: plan, analyze, simulate.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/log.hpp"
#include "base/parallel.hpp"
#include "base/terminal.hpp"
#include "base/text.hpp"
#include "fit.hpp"
#include "given.hpp"
#include "io/trace.hpp"
#include "outlook.hpp"
#include "plan/padding.hpp"
#include "plan_texts.hpp"
#include "planning.hpp"
#include "report/figure.hpp"
#include "report/plan_page.hpp"
#include "schedule/account.hpp"
#include "schedule/compile.hpp"
#include "schedule/simulate.hpp"
#include "search_watch.hpp"
#include "tuner/tuner.hpp"
#include "verbs.hpp"

namespace brume::app {
namespace {

using nlohmann::json;

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

/// A plan that somebody uses, beside the best one.
struct Other {
  Other(const PlanOptions& options, Given given) : path(options.against) {
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
  Given given(options);
  if (given.deck.analysis.mist()) return plan_as_mist(options, given);
  std::optional<Other> other;
  if (!options.against.empty()) other.emplace(options, given);
  deck::SearchKeys keys = given.deck.search;
  keys.simulate_top = std::max(keys.simulate_top, options.top);
  std::vector<plan::Plan> starts;
  if (!options.start.empty()) starts.push_back(plan::load(options.start));
  const tuner::Result result = [&] {
    SearchWatch watch(keys.time_limit_s, SearchWatch::Interrupt::ends_search);
    tuner::Options how = watch.options();
    how.starts = starts;
    return search(given.deck, keys, given.model, given.cluster, given.machine, how, options.state);
  }();
  if (!starts.empty() && result.search.adapted == 0)
    log::warn("{}: no plan like it fits this deck, so the search began without it", options.start);
  const tuner::RankedPlan& best = result.best.front();
  given.model = plan::padded(std::move(given.model), best.plan);
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
  Given given(options);
  if (given.deck.analysis.mist()) return analyze_as_mist(options, std::move(given));
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
  Given given(options);
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

}  // namespace brume::app
