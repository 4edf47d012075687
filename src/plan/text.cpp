/// @file The text form of a plan.
#include <utility>

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

/// A value from a file whose keys may have older names.
template <class Value>
Value read_renamed(deck::Document document, const deck::Schema<Value>& keys) {
  for (const std::string& note : document.rename_aliases(*keys.fields())) log::info("{}", note);
  return keys.read(document);
}

}  // namespace

std::string text(const Plan& plan) { return schema().write(plan); }

Plan parse(const std::string& text, const std::string& origin) {
  deck::Document document = deck::Document::parse(text, origin);
  document.rename_aliases(*schema().fields());
  return checked(schema().read(document), document.origin());
}

Plan load(const std::string& path) {
  const PhasePlans plans = load_phases(path);
  require(!plans.prompts, Failure::input,
          "{} has a plan of its own for prompts, which `generate` alone uses. Name a file with one "
          "plan.",
          path);
  return plans.answers;
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
  deck::Document document = deck::Document::load(path);
  if (!document.has("prompts") && !document.has("answers"))
    return {.answers = checked(read_renamed(std::move(document), schema()), path)};
  const Phases phases = read_renamed(std::move(document), phases_schema());
  return {.answers = checked(phases.answers, path + ": [answers]"),
          .prompts = checked(phases.prompts, path + ": [prompts]")};
}

}  // namespace brume::plan
