/// @file The text form of a plan.
#include "base/error.hpp"
#include "base/log.hpp"
#include "plan/knobs.hpp"
#include "plan/phases.hpp"

namespace brume::plan {
namespace {

constexpr int newest_version = 1;
constexpr std::int64_t most_devices = 1 << 30;  ///< more than any deck has, and few enough to count

const deck::Schema<Plan>& schema() {
  static const deck::Schema<Plan> schema = plan_schema();
  return schema;
}

/// @throws Error(input) for a plan that nothing can run
Plan checked(Plan plan, const std::string& origin) {
  require(plan.version == newest_version, Failure::input,
          "{}: plan version {} is not known, only version {}", origin, plan.version,
          newest_version);
  require(!plan.stages.empty(), Failure::input, "{}: a plan needs at least one [[stages]]", origin);
  require(plan.num_stages() % plan.order.chunks == 0, Failure::input,
          "{}: virtual_stages = {} must divide the {} stages of a plan", origin, plan.order.chunks,
          plan.num_stages());
  std::int64_t devices = 0;
  for (const Stage& stage : plan.stages) {
    const std::int64_t data_ranks = std::int64_t{stage.dp} * stage.cp;
    const bool few = data_ranks <= most_devices && data_ranks * stage.tp <= most_devices;
    if (few) devices += data_ranks * stage.tp;
    require(few && devices <= most_devices, Failure::input,
            "{}: the stages of a plan may use {} devices, these use more", origin, most_devices);
  }
  return plan;
}

Plan read(const deck::Document& document) {
  return checked(schema().read(document), document.origin());
}

/// PhasePlans that differ.
struct Phases {
  Plan prompts, answers;
};

const deck::Schema<Phases>& phases_schema() {
  static const deck::Schema<Phases> schema = [] {
    deck::Schema<Phases> keys;
    keys.table("prompts", &Phases::prompts, plan::schema(), "plan of passes that compute prompts");
    return keys.table("answers", &Phases::answers, plan::schema(),
                      "plan of passes that compute next tokens");
  }();
  return schema;
}

deck::Document loaded(const std::string& path, const deck::detail::Fields& fields) {
  deck::Document document = deck::Document::load(path);
  for (const std::string& note : document.rename_aliases(fields)) log::info("{}", note);
  return document;
}

}  // namespace

std::string text(const Plan& plan) { return schema().write(plan); }

Plan parse(const std::string& text, const std::string& origin) {
  deck::Document document = deck::Document::parse(text, origin);
  document.rename_aliases(*schema().fields());
  return read(document);
}

Plan load(const std::string& path) {
  require(!deck::Document::load(path).has("prompts"), Failure::input,
          "{} has a plan of its own for prompts, which `generate` alone uses. Name a file with one "
          "plan.",
          path);
  return read(loaded(path, *schema().fields()));
}

std::vector<Plan> each(const PhasePlans& plans) {
  std::vector<Plan> all{plans.answers};
  if (plans.prompts) all.push_back(*plans.prompts);
  return all;
}

std::string text(const PhasePlans& plans) {
  return plans.prompts ? phases_schema().write({*plans.prompts, plans.answers})
                       : text(plans.answers);
}

PhasePlans load_phases(const std::string& path) {
  const deck::Document document = deck::Document::load(path);
  if (!document.has("prompts") && !document.has("answers")) return {.answers = load(path)};
  const Phases phases = phases_schema().read(loaded(path, *phases_schema().fields()));
  return {.answers = checked(phases.answers, path + ": [answers]"),
          .prompts = checked(phases.prompts, path + ": [prompts]")};
}

}  // namespace brume::plan
