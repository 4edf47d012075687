/// @file The text form of a plan.
#include "base/error.hpp"
#include "base/log.hpp"
#include "plan/knobs.hpp"

namespace brume::plan {
namespace {

constexpr int newest_version = 1;
constexpr std::int64_t most_devices = 1 << 30;  ///< more than any deck has, and few enough to count

const deck::Schema<Plan>& schema() {
  static const deck::Schema<Plan> schema = plan_schema();
  return schema;
}

Plan read(const deck::Document& document) {
  Plan plan = schema().read(document);
  require(plan.version == newest_version, Failure::input,
          "{}: plan version {} is not known, only version {}", document.origin(), plan.version,
          newest_version);
  require(!plan.stages.empty(), Failure::input, "{}: a plan needs at least one [[stages]]",
          document.origin());
  require(plan.num_stages() % plan.order.chunks == 0, Failure::input,
          "{}: virtual_stages = {} must divide the {} stages of a plan", document.origin(),
          plan.order.chunks, plan.num_stages());
  std::int64_t devices = 0;
  for (const Stage& stage : plan.stages) {
    const std::int64_t data_ranks = std::int64_t{stage.dp} * stage.cp;
    const bool few = data_ranks <= most_devices && data_ranks * stage.tp <= most_devices;
    if (few) devices += data_ranks * stage.tp;
    require(few && devices <= most_devices, Failure::input,
            "{}: the stages of a plan may use {} devices, these use more", document.origin(),
            most_devices);
  }
  return plan;
}

}  // namespace

std::string text(const Plan& plan) { return schema().write(plan); }

Plan parse(const std::string& text, const std::string& origin) {
  deck::Document document = deck::Document::parse(text, origin);
  document.rename_aliases(*schema().fields());
  return read(document);
}

Plan load(const std::string& path) {
  deck::Document document = deck::Document::load(path);
  for (const std::string& note : document.rename_aliases(*schema().fields())) log::info("{}", note);
  return read(document);
}

}  // namespace brume::plan
