#include "space.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "analyzer/analyzer.hpp"
#include "base/numbers.hpp"
#include "plan/passes.hpp"
#include "plan/shapes.hpp"

namespace brume::tuner {
namespace {

using Layouts = std::map<int, std::vector<Layout>>;

constexpr double least_memory_error = 0.04;  ///< share, for other orders than 1F1B

/// Adds the layouts of one group, by number of microbatches.
void add_layouts(const model::Config& model, int global_batch, const hardware::Cluster& cluster,
                 int group, const deck::SearchKeys& search, Layouts& found) {
  const bool disk = cluster.groups[std::size_t(group)].disk_bytes > 0;
  const bool host_update =
      std::ranges::any_of(search.host_update, [](double r) { return r > 0.0; });
  for (const plan::StageShape& shape :
       plan::stage_shapes(model, global_batch, cluster, group, search))
    found[global_batch / shape.dp / shape.microbatch].push_back(
        {.group = group,
         .nodes = shape.nodes,
         .devices_per_node = shape.devices_per_node,
         .microbatch = shape.microbatch,
         .dp = shape.dp,
         .tp = shape.tp,
         .disk = disk,
         .host_update = host_update});
}

/// All layouts, by number of microbatches.
Layouts layouts(const model::Config& model, int global_batch, const hardware::Cluster& cluster,
                const deck::SearchKeys& search) {
  Layouts found;
  for (int group = 0; group < cluster.num_groups(); ++group)
    add_layouts(model, global_batch, cluster, group, search, found);
  return found;
}

/// Adds the configuration for each run-ahead that makes a difference: some stage but the last has
/// more than one other microbatch in flight.
void add_configs(PipelineConfig config, const deck::SearchKeys& search,
                 std::vector<PipelineConfig>& found) {
  const bool matters = config.num_stages > 1 && config.microbatches > 2;
  for (int run_ahead : {1, 2}) {
    if (matters ? !plan::allows(search.run_ahead, run_ahead) : run_ahead > 1) continue;
    config.run_ahead = run_ahead;
    found.push_back(config);
  }
}

/// The same of several chunks.
void add_configs_of_chunks(PipelineConfig config, const deck::SearchKeys& search,
                           std::vector<PipelineConfig>& found) {
  if (!search.whole_rounds) return add_configs(std::move(config), search, found);
  if (config.microbatches % config.num_stages != 0) return;
  config.run_ahead = 2;
  found.push_back(std::move(config));
}

/// How many chunks, of several, the layers of each stage may be cut into. Even ones fill a pipeline
/// best, so these numbers divide the layers of a stage, of which some have one more than others.
std::vector<int> numbers_of_chunks(int num_layers, int num_stages, const deck::SearchKeys& search) {
  const int fewest = num_layers / num_stages, most = ceil_div(num_layers, num_stages);
  std::vector<int> found;
  for (int count = 2; count <= fewest; ++count)
    if (plan::allows(search.chunks, count) && (fewest % count == 0 || most % count == 0))
      found.push_back(count);
  return found;
}

/// Backwards in two parts need gradients on the device, whole.
bool may_split_backwards(const deck::SearchKeys& search) {
  return search.zero_bubble && plan::allows(search.grad_offload, 0.0) &&
         (plan::allows(search.zero_levels, 0) || plan::allows(search.zero_levels, 1));
}

}  // namespace

double PipelineConfig::in_flight(int after) const {
  if (chunks == 1) return plan::in_flight(run_ahead, after, microbatches);
  const plan::Rounds rounds{microbatches, num_stages, chunks};
  const int passes = plan::passes_in_flight(rounds, run_ahead, num_stages - 1 - after);
  return double(passes + 1) / chunks - 1.0;
}

MemoryKey PipelineConfig::memory_key(int after) const {
  const double ahead = in_flight(after);
  return {ahead, zero_bubble ? int(in_flight(num_stages - 1) - ahead) : 0, memory_error};
}

plan::Stage stage_of(const Layout& mesh, const std::string& group) {
  return {.nodes = mesh.nodes,
          .devices_per_node = mesh.devices_per_node,
          .microbatch = mesh.microbatch,
          .dp = mesh.dp,
          .tp = mesh.tp,
          .group = group};
}

analyzer::StageRole StagePosition::role() const {
  const int own = mesh().group;
  return {.first = after + 1 == config.num_stages,
          .last = after == 0,
          .group = own,
          .before = own,
          .after = own,
          .disk = mesh().disk,
          .host_update = mesh().host_update,
          .times = mesh().times};
}

bool may_begin(int first_device, int devices, int devices_per_node) {
  const int on_node = first_device % devices_per_node;
  return devices <= devices_per_node ? on_node + devices <= devices_per_node : on_node == 0;
}

std::vector<PipelineConfig> configs(const model::Config& model, int global_batch,
                                    const hardware::Cluster& cluster,
                                    const deck::SearchKeys& search) {
  std::vector<PipelineConfig> found;
  const int most = std::min(model.num_layers, cluster.devices());
  const bool unequal = search.unequal_stages || cluster.num_groups() > 1;
  for (const auto& [microbatches, all] : layouts(model, global_batch, cluster, search))
    for (int num_stages = 1; num_stages <= most; ++num_stages) {
      if (!plan::allows(search.stages, num_stages)) continue;
      PipelineConfig config{.num_stages = num_stages, .microbatches = microbatches, .layouts = {}};
      for (const Layout& layout : all) {
        if (!plan::may_hold(num_stages, layout.devices(), cluster, search)) continue;
        config.layouts.push_back(layout);
        if (unequal) continue;
        add_configs(config, search, found);
        config.layouts.clear();
      }
      if (!config.layouts.empty()) add_configs(config, search, found);
    }
  return found;
}

std::vector<PipelineConfig> configs_in_other_orders(const model::Config& model, int global_batch,
                                                    const hardware::Cluster& cluster,
                                                    const deck::SearchKeys& search) {
  std::vector<PipelineConfig> found;
  if (cluster.num_groups() > 1 || model.frozen_blocks > 0) return found;
  for (const auto& [microbatches, all] : layouts(model, global_batch, cluster, search))
    for (const Layout& layout : all) {
      const int num_stages = cluster.devices() / layout.devices();
      if (num_stages == 1 || num_stages * layout.devices() != cluster.devices() ||
          num_stages > std::min(microbatches, model.num_layers) ||
          !plan::allows(search.stages, num_stages))
        continue;
      PipelineConfig config{.num_stages = num_stages,
                            .microbatches = microbatches,
                            .memory_error = least_memory_error,
                            .layouts = {layout}};
      for (const int chunks : numbers_of_chunks(model.num_layers, num_stages, search)) {
        config.chunks = chunks;
        add_configs_of_chunks(config, search, found);
      }
      if (!may_split_backwards(search)) continue;
      config.chunks = 1;
      config.zero_bubble = true;
      add_configs(config, search, found);
    }
  return found;
}

}  // namespace brume::tuner
