/// @file Plans and predictions by Mist's counting.
#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/log.hpp"
#include "base/terminal.hpp"
#include "base/text.hpp"
#include "mist/case.hpp"
#include "mist/deck.hpp"
#include "plan_texts.hpp"
#include "planning.hpp"

namespace brume::app {

int analyze_as_mist(const PlanOptions& options, Given given) {
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
    nlohmann::json object = described(plan, mist::described(tuned.plan));
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

}  // namespace brume::app
