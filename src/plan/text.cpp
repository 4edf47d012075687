/// @file The text form of a plan.
#include "base/error.hpp"
#include "deck/schema.hpp"
#include "plan/plan.hpp"

namespace brume::plan {
namespace {

constexpr int newest_version = 1;
constexpr std::int64_t most_devices = 1 << 30;  ///< more than any deck has, and few enough to count

deck::Schema<Stage> stage_schema() {
  deck::Schema<Stage> schema;
  const auto ratio = [](const char* help) { return deck::Key{.help = help, .min = 0, .max = 1}; };
  const auto disk_ratio = [](const char* help) {
    return deck::Key{.help = help, .min = 0, .max = 1, .if_not_zero = true};
  };
  schema
      .key("first_layer", &Stage::first_layer,
           {.help = "its first layer", .required = true, .min = 0})
      .key("group", &Stage::group, {.help = "group of nodes it lies on", .if_given = true})
      .key("layers", &Stage::layers, {.help = "layers it holds", .required = true, .min = 1})
      .key("nodes", &Stage::nodes, {.help = "nodes of its mesh", .min = 1})
      .key("devices_per_node", &Stage::devices_per_node,
           {.help = "devices of its mesh on each node", .required = true, .min = 1})
      .key("microbatch", &Stage::microbatch,
           {.unit = "sequences",
            .help = "per microbatch and data-parallel rank",
            .required = true,
            .min = 1})
      .key("dp", &Stage::dp, {.help = "data-parallel degree", .required = true, .min = 1})
      .key("tp", &Stage::tp, {.help = "tensor-parallel degree", .required = true, .min = 1})
      .key("zero_level", &Stage::zero_level,
           {.help = "0 none, 1 optimizer state sharded", .min = 0, .max = 3})
      .key("ckpt_layers", &Stage::ckpt_layers,
           {.help = "last layers of the stage, recomputed in backward", .min = 0})
      .key("weight_offload_ratio", &Stage::weight_offload_ratio,
           ratio("share of weights kept in host memory"))
      .key("grad_offload_ratio", &Stage::grad_offload_ratio,
           ratio("share of gradients kept in host memory"))
      .key("optim_offload_ratio", &Stage::optim_offload_ratio,
           ratio("share of optimizer state kept in host memory"))
      .key("act_offload_ratio", &Stage::act_offload_ratio,
           ratio("share of saved activations kept in host memory"))
      .key("optim_disk_ratio", &Stage::optim_disk_ratio,
           disk_ratio("share of optimizer state kept on disk, part of optim_offload_ratio"))
      .key("act_disk_ratio", &Stage::act_disk_ratio,
           disk_ratio("share of saved activations kept on disk, part of act_offload_ratio"));
  return schema;
}

const deck::Schema<Plan>& plan_schema() {
  static const deck::Schema<Plan> schema = [] {
    deck::Schema<Plan> s;
    s.key("version", &Plan::version, {.help = "of this format", .required = true})
        .key("global_batch", &Plan::global_batch,
             {.unit = "sequences", .help = "an iteration", .required = true, .min = 1})
        .key("microbatches", &Plan::microbatches,
             {.help = "an iteration", .required = true, .min = 1})
        .key("run_ahead", &Plan::run_ahead,
             {.unit = "microbatches",
              .help = "a stage is ahead of the next one; 2 hides messages between stages",
              .min = 1,
              .max = 2})
        .tables("stages", &Plan::stages, stage_schema(), "pipeline stages, first stage first");
    return s;
  }();
  return schema;
}

Plan read(const deck::Document& document) {
  Plan plan = plan_schema().read(document);
  require(plan.version == newest_version, Failure::input,
          "{}: plan version {} is not known, only version {}", document.origin(), plan.version,
          newest_version);
  require(!plan.stages.empty(), Failure::input, "{}: a plan needs at least one [[stages]]",
          document.origin());
  std::int64_t devices = 0;
  for (const Stage& stage : plan.stages) {
    const std::int64_t of_stage = std::int64_t{stage.dp} * stage.tp;
    require(of_stage <= most_devices && (devices += of_stage) <= most_devices, Failure::input,
            "{}: the stages of a plan may use {} devices, these use more", document.origin(),
            most_devices);
  }
  return plan;
}

}  // namespace

std::string text(const Plan& plan) { return plan_schema().write(plan); }

Plan parse(const std::string& text, const std::string& origin) {
  return read(deck::Document::parse(text, origin));
}

Plan load(const std::string& path) { return read(deck::Document::load(path)); }

}  // namespace brume::plan
