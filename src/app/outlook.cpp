#include "outlook.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/parallel.hpp"
#include "base/text.hpp"
#include "base/units.hpp"
#include "io/checkpoint_clock.hpp"
#include "price/price.hpp"

namespace brume::app {
namespace {

using schedule::Content;

/// Kinds of memory as people count them; the others are staging, tokens and sums.
struct Kind {
  const char* name;
  std::vector<Content> contents;
};
const Kind kinds[] = {
    {"weights", {Content::weights}},
    {"gradients", {Content::grads}},
    {"optimizer", {Content::optimizer}},
    {"activations", {Content::stream, Content::saved}},
    {"workspace", {Content::workspace}},
    {"other", {Content::staging, Content::batch, Content::totals}},
};

std::int64_t bytes_of(const Kind& kind, const schedule::StageAccount& stage) {
  std::int64_t sum = 0;
  for (const Content content : kind.contents) sum += stage.device_bytes[std::size_t(content)];
  return sum;
}

/// Steps of the training, as far as the deck alone says.
double steps_of(const deck::Deck& deck, const model::Config& model) {
  const deck::TrainingKeys& keys = deck.training;
  if (keys.steps > 0) return keys.steps;
  return std::ceil(keys.tokens / (double(keys.global_batch) * model.seq_len));
}

/// Bytes that a checkpoint has of trained parameters.
double checkpoint_bytes(const model::Config& model) {
  double bytes = 0.0;
  for (const model::Block& block : model::blocks(model)) {
    const model::Layout layout = model::layout(block, 1, 0, 1);
    bytes += double(model::state_bytes(model, layout, 0, layout.trained_elements));
    if (model.precision == model::Precision::fp32)
      bytes += double(layout.trained_elements) * model::weight_bytes(model.precision);
  }
  return bytes;
}

/// Checkpoints are copied to host memory first, and written by all nodes at the usual speed.
Failures failures(const deck::Deck& deck, const model::Config& model,
                  const hardware::Machine& machine, const plan::Plan& plan, double iteration_s) {
  const deck::OutputKeys& keys = deck.output;
  if (keys.node_mtbf_hours <= 0.0) return {};
  const int nodes = hardware::cluster(deck.cluster).nodes();
  const double bytes = checkpoint_bytes(model);
  const double cost_s =
      price::copy_out_s(machine.profile(plan.stages.front().group), bytes / plan.devices());
  const double write_s = io::usual_write_s(bytes / nodes);
  Failures made{.mtbf_hours = keys.job_mtbf_hours(nodes), .restart_s = 60.0 * keys.restart_minutes};
  io::CheckpointClock clock({.steps = keys.checkpoint_every,
                             .minutes = keys.checkpoint_minutes,
                             .mtbf_hours = made.mtbf_hours},
                            write_s, {});
  clock.wrote(cost_s, write_s, {});
  made.interval_s = clock.interval_s();
  if (keys.checkpoint_every > 0)
    made.interval_s = std::min(made.interval_s, keys.checkpoint_every * iteration_s);
  made.goodput = io::goodput(made.interval_s, cost_s, 3600.0 * made.mtbf_hours, made.restart_s);
  return made;
}

std::string length(double hours) {
  if (hours < 1.0) return format_seconds(3600.0 * hours);
  return hours < 72.0 ? fmt::format("{:.3g} hours", hours)
                      : fmt::format("{:.3g} days", hours / 24.0);
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100.0 * share); }

std::string time_table(const Outlook& outlook, std::size_t columns) {
  std::vector<std::string> header{"stage"};
  for (int a = 0; a < schedule::num_activities; ++a)
    header.emplace_back(schedule::name(schedule::Activity(a)));
  header.emplace_back("step time");
  Table table(header);
  for (std::size_t i = 0; i < outlook.account.stages.size(); ++i) {
    std::vector<std::string> row{std::to_string(i)};
    for (const double seconds : outlook.account.stages[i].seconds)
      row.push_back(percent(seconds / outlook.account.iteration_s));
    row.push_back(format_seconds(outlook.account.iteration_s));
    table.add(std::move(row));
  }
  return table.text(columns);
}

/// All in the unit of the largest amount, which leaves room for many columns.
std::string memory_table(const std::vector<report::StageBytes>& stages, std::size_t columns) {
  std::vector<double> sums;
  double most = 0.0;
  for (const report::StageBytes& stage : stages) {
    double& sum = sums.emplace_back(0.0);
    for (const report::Amount& kind : stage.kinds) sum += kind.value;
    most = std::max({most, sum, stage.limit});
  }
  const bool large = most >= bytes_per_gib;
  const auto amount = [&](double bytes) {
    return fmt::format("{:.2f}", bytes / (large ? bytes_per_gib : bytes_per_mib));
  };
  std::vector<std::string> header{large ? "stage, GiB" : "stage, MiB"};
  for (const report::Amount& kind : stages.front().kinds) header.push_back(kind.name);
  for (const char* name : {"sum", "of"}) header.emplace_back(name);
  Table table(header);
  for (std::size_t i = 0; i < stages.size(); ++i) {
    std::vector<std::string> row{std::to_string(i)};
    for (const report::Amount& kind : stages[i].kinds) row.push_back(amount(kind.value));
    row.push_back(amount(sums[i]));
    row.push_back(amount(stages[i].limit));
    table.add(std::move(row));
  }
  return table.text(columns);
}

/// What a profile knows of products in 8 bits.
std::string float8_text(const hardware::Profile& profile) {
  const bool measured =
      std::ranges::any_of(profile.operators, [](const hardware::OperatorRow& row) {
        return row.kind == model::name(model::OperatorKind::matmul_fp8);
      });
  if (measured) return "products of linear layers in 8 bits were measured";
  if (profile.fp8_flops_per_s <= 0.0)
    return "products of linear layers take bf16's time and that of rounding: the profile has no "
           "fp8_flops_per_s";
  return fmt::format(
      "products of linear layers at {:.4g} TFLOP/s instead of bf16's {:.4g}, of which as large a "
      "share is reached (assumed), and the time of rounding",
      1e-12 * profile.fp8_flops_per_s, 1e-12 * profile.flops_per_s);
}

}  // namespace

double peak_flops_per_s(const plan::Plan& plan, const model::Config& model,
                        const hardware::Machine& machine) {
  double sum = 0.0;
  for (int i = 0; i < plan.pipeline_size(); ++i) {
    const plan::Stage& stage = plan.stages[i];
    const hardware::Profile& profile = machine.profile(stage.group);
    const double own = model.precision == model::Precision::fp32  ? profile.fp32_flops_per_s
                       : model.precision == model::Precision::fp8 ? profile.fp8_flops_per_s
                                                                  : 0.0;
    sum += stage.devices() * (own > 0.0 ? own : profile.flops_per_s);
  }
  return sum;
}

Outlook outlook(const deck::Deck& deck, const model::Config& model,
                const hardware::Machine& machine, const plan::Plan& plan,
                const std::optional<schedule::Account>& known) {
  const schedule::Account account =
      known ? *known : schedule::account(plan, model, machine, num_cores());
  const double sequences_per_s = plan.global_batch / account.iteration_s;
  Outlook outlook{.tokens_per_s = sequences_per_s * model.seq_len,
                  .devices = plan.devices(),
                  .flops_per_s = sequences_per_s * model::flops_per_sequence(model),
                  .peak_flops_per_s = peak_flops_per_s(plan, model, machine),
                  .steps = steps_of(deck, model),
                  .padded_len = model.padding > 0 ? model.padded_len() : 0,
                  .frozen = model::frozen_text(model),
                  .failures = failures(deck, model, machine, plan, account.iteration_s),
                  .account = account};
  for (const plan::Stage& stage : plan.stages) {
    const hardware::Profile& profile = machine.profile(stage.group);
    outlook.error = std::max(outlook.error, profile.error);
    if (model.precision == model::Precision::fp8) outlook.float8.insert(float8_text(profile));
  }
  return outlook;
}

std::string text(const Outlook& outlook, const plan::Plan& plan) {
  const double devices = outlook.devices;
  std::string lines = fmt::format(
      "speed   {} tokens/s, {} a device; {:.3g} TFLOP/s of the model a device{}; devices wait {} "
      "of the time\n",
      format_count(outlook.tokens_per_s), format_count(outlook.tokens_per_s / devices),
      outlook.flops_per_s / devices / 1e12,
      outlook.mfu() > 0.0 ? fmt::format(" ({} of {:.3g}: MFU)", percent(outlook.mfu()),
                                        outlook.peak_flops_per_s / devices / 1e12)
                          : "",
      percent(outlook.account.waiting_share(plan)));
  const std::string error =
      outlook.error > 0.0 ? fmt::format(" +- {} (1 in 3 lie outside)",
                                        format_seconds(outlook.error * outlook.account.iteration_s))
                          : "";
  if (outlook.steps > 0.0 || !error.empty())
    lines +=
        fmt::format("length  {} per step{}", format_seconds(outlook.account.iteration_s), error);
  if (outlook.steps > 0.0)
    lines += fmt::format("; {:.0f} steps take {}, {:.3g} device hours", outlook.steps,
                         length(outlook.hours()), outlook.hours() * devices);
  if (!lines.ends_with('\n')) lines += "\n";
  if (const Failures& failures = outlook.failures; failures.mtbf_hours > 0.0)
    lines += fmt::format(
        "goodput {} with a failure every {}, {} to restart and a checkpoint every {}{}\n",
        percent(failures.goodput), length(failures.mtbf_hours), format_seconds(failures.restart_s),
        format_seconds(failures.interval_s),
        outlook.steps > 0.0 ? fmt::format("; with them {}, {:.3g} device hours",
                                          length(outlook.hours_with_failures()),
                                          outlook.hours_with_failures() * devices)
                            : "");
  for (const std::string& speed : outlook.float8) lines += "fp8     " + speed + "\n";
  if (outlook.padded_len > 0)
    lines +=
        fmt::format("padded  each sequence is padded to {} tokens, which its ranks cut evenly\n",
                    outlook.padded_len);
  if (!outlook.frozen.empty()) lines += "frozen  " + outlook.frozen + "\n";
  return lines;
}

std::vector<report::StageBytes> memory_by_kind(const Outlook& outlook, const plan::Plan& plan,
                                               const hardware::Machine& machine,
                                               const hardware::Cluster& cluster) {
  std::vector<report::StageBytes> stages;
  for (std::size_t i = 0; i < outlook.account.stages.size(); ++i) {
    const std::string& group = plan.stages[i].group;
    report::StageBytes& stage = stages.emplace_back();
    stage.limit = double(cluster.groups[cluster.index(group)].memory_bytes);
    for (const Kind& kind : kinds)
      stage.kinds.push_back({kind.name, double(bytes_of(kind, outlook.account.stages[i]))});
    stage.kinds.push_back({"reserved", double(machine.profile(group).reserved_bytes)});
  }
  return stages;
}

std::string tables(const Outlook& outlook, const plan::Plan& plan, const hardware::Machine& machine,
                   const hardware::Cluster& cluster, std::size_t columns) {
  return time_table(outlook, columns) +
         memory_table(memory_by_kind(outlook, plan, machine, cluster), columns);
}

std::string text(const tuner::Result& result, const Outlook& outlook, const deck::Deck& deck,
                 const hardware::Machine& machine, const hardware::Cluster& usable,
                 std::size_t columns) {
  const plan::Plan& plan = result.best.front().plan;
  const std::string said = text(outlook, plan) + tuner::report(result, usable, columns) +
                           tables(outlook, plan, machine, hardware::cluster(deck.cluster), columns);
  return wrapped(said, columns);
}

nlohmann::json described(const Outlook& outlook, const plan::Plan& plan) {
  nlohmann::json object{
      {"tokens_per_s", outlook.tokens_per_s},
      {"tokens_per_s_per_device", outlook.tokens_per_s / outlook.devices},
      {"model_flops_per_s_per_device", outlook.flops_per_s / outlook.devices},
      {"waiting_share", outlook.account.waiting_share(plan)},
      {"stages", nlohmann::json::array()},
  };
  if (outlook.mfu() > 0.0) object["mfu"] = outlook.mfu();
  if (outlook.padded_len > 0) object["padded_seq_len"] = outlook.padded_len;
  if (outlook.error > 0.0) object["error"] = outlook.error;
  if (outlook.steps > 0.0) {
    object["hours"] = outlook.hours();
    object["device_hours"] = outlook.hours() * outlook.devices;
  }
  if (outlook.failures.mtbf_hours > 0.0) {
    object["goodput"] = outlook.failures.goodput;
    object["checkpoint_interval_s"] = outlook.failures.interval_s;
    if (outlook.steps > 0.0) object["hours_with_failures"] = outlook.hours_with_failures();
  }
  for (const schedule::StageAccount& stage : outlook.account.stages) {
    nlohmann::json& of = object["stages"].emplace_back();
    for (int a = 0; a < schedule::num_activities; ++a)
      of["seconds"][schedule::name(schedule::Activity(a))] = stage.seconds[a];
    for (const Kind& kind : kinds) of["device_bytes"][kind.name] = bytes_of(kind, stage);
  }
  return object;
}

}  // namespace brume::app
