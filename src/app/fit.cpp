#include "fit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "base/text.hpp"
#include "schedule/compile.hpp"

namespace brume::app {
namespace {

void keep_fullest(Need& need, std::int64_t bytes, std::int64_t limit_bytes) {
  need = {std::max(need.bytes, bytes), limit_bytes};
}

}  // namespace

analyzer::Prediction predict(const plan::Plan& plan, const model::Config& model,
                             const hardware::Machine& machine, const hardware::Cluster& cluster) {
  constexpr double formula_error = 0.15;  // of memory
  analyzer::Prediction prediction = analyzer::analyze(plan, model, machine);
  // Of several stages the formulas of models that are frozen in part are less exact.
  const bool trained_alike = model::trains_layers_alike(model) && model.frozen_blocks == 0;
  const auto by_formula = [&](int stage) {
    return plan.order.is_1f1b() && (trained_alike || plan.num_stages() == 1) &&
           plan.stages[stage].first_layer >= model.first_dense_layers;
  };
  const auto is_clear = [&](int stage) {
    const auto group = std::size_t(cluster.index(plan.stages[stage].group));
    const double limit = double(cluster.groups[group].memory_bytes);
    const double peak = double(prediction.stages[stage].peak_bytes());
    return std::abs(peak - limit) > formula_error * limit;
  };
  for (int first = 0; first < plan.pipeline_size(); ++first) {
    if (by_formula(first) && is_clear(first)) continue;
    const plan::Stage& s = plan.stages[first];
    analyzer::StagePrediction placed{};
    for (int rank :
         {plan::first_rank(plan, first), plan::first_rank(plan, first) + s.devices() - 1}) {
      const schedule::Program program = schedule::compile(plan, model, rank);
      const bool forward = program.live_peak_forward_bytes > program.live_peak_backward_bytes;
      const auto take = [](std::int64_t& most, std::int64_t bytes) {
        most = std::max(most, bytes);
      };
      const std::int64_t device_bytes = program.arena_bytes[std::size_t(schedule::Tier::device)];
      take(placed.peak_forward_bytes, forward ? device_bytes : program.live_peak_forward_bytes);
      take(placed.peak_backward_bytes, forward ? program.live_peak_backward_bytes : device_bytes);
      take(placed.host_bytes, program.arena_bytes[std::size_t(schedule::Tier::host)]);
      take(placed.disk_bytes, program.arena_bytes[std::size_t(schedule::Tier::disk)]);
    }
    for (int stage : plan::stages_beside(plan, first)) {
      analyzer::StagePrediction& all = prediction.stages[stage];
      placed.time = all.time;
      all = placed;
    }
  }
  return prediction;
}

std::vector<StageNeed> stage_needs(const plan::Plan& plan, const analyzer::Prediction& prediction,
                                   const hardware::Cluster& cluster) {
  std::vector<StageNeed> needs(std::size_t(plan.pipeline_size()));
  for (const auto& [node, ranks] : plan::ranks_of_nodes(plan, cluster)) {
    const hardware::NodeGroup& group = cluster.groups[node.group];
    std::int64_t host_bytes = 0, disk_bytes = 0;
    std::set<int> stages;
    for (int rank : ranks) {
      const int stage = plan::stage_index(plan, rank);
      host_bytes += prediction.stages[stage].host_bytes;
      disk_bytes += prediction.stages[stage].disk_bytes;
      stages.insert(stage);
    }
    for (int stage : stages) {
      StageNeed& need = needs[stage];
      need.device = {prediction.stages[stage].peak_bytes(), group.memory_bytes};
      keep_fullest(need.host, host_bytes, group.host_memory_bytes);
      keep_fullest(need.disk, disk_bytes, group.disk_bytes);
    }
  }
  return needs;
}

std::vector<std::string> misfits(const plan::Plan& plan, const std::vector<StageNeed>& needs) {
  std::vector<std::string> found;
  for (std::size_t i = 0; i < needs.size(); ++i) {
    const std::string& group = plan.stages[i].group;
    const auto compare = [&](const Need& need, const char* where, const char* gives) {
      if (need.bytes <= need.limit_bytes) return;
      found.push_back(fmt::format(
          "stage {} needs {} {}, {} more than {}{}", i, format_bytes(double(need.bytes)), where,
          format_bytes(double(need.bytes - need.limit_bytes)),
          group.empty() ? "cluster." : "group '" + group + "' of [[cluster.groups]]: ", gives));
    };
    compare(needs[i].device, "on a device", "memory_gib leaves");
    compare(needs[i].host, "of a node's host memory", "host_memory_gib gives");
    compare(needs[i].disk, "of a node's disk", "disk_gib gives");
  }
  return found;
}

std::string fit_text(const plan::Plan& plan, const std::vector<StageNeed>& needs,
                     std::size_t columns) {
  Table table(
      {"stage", "device memory", "of", "host memory of a node", "of", "disk of a node", "of"});
  for (std::size_t i = 0; i < needs.size(); ++i) {
    std::vector<std::string> row{std::to_string(i)};
    for (const Need& need : {needs[i].device, needs[i].host, needs[i].disk}) {
      row.push_back(format_bytes(double(need.bytes)));
      row.push_back(format_bytes(double(need.limit_bytes)));
    }
    table.add(std::move(row));
  }
  std::string text = table.text(columns);
  for (const std::string& misfit : misfits(plan, needs)) text += "does not fit: " + misfit + "\n";
  return text;
}

}  // namespace brume::app
