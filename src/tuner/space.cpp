#include "space.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "analyzer/analyzer.hpp"
#include "base/numbers.hpp"
#include "plan/shapes.hpp"

namespace brume::tuner {
namespace {

using Layouts = std::map<int, std::vector<Layout>>;

constexpr double least_memory_error = 0.04;  ///< share, for other orders than 1F1B

/// Adds the layouts of one group, by number of microbatches.
void add_layouts(const model::Config& model, int global_batch, const hardware::Cluster& cluster,
                 int group, const deck::SearchKeys& search, Layouts& found) {
  const bool disk = cluster.groups[group].disk_bytes > 0;
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
         .cp = shape.cp,
         .gather_keys = shape.gather_keys,
         .tp = shape.tp,
         .ep = shape.ep,
         .dispatch_tokens = shape.dispatch_tokens,
         .mlp_tiles = shape.mlp_tiles,
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

/// Adds the configuration in each order.
void add_orders(PipelineConfig config, const std::vector<plan::Order>& orders,
                std::vector<PipelineConfig>& found) {
  for (const plan::Order& order : orders) {
    config.order = order;
    found.push_back(config);
  }
}

}  // namespace

double PipelineConfig::in_flight(int after) const {
  return double(order.in_flight(shape(), num_stages - 1 - after) + 1) / order.chunks - 1.0;
}

MemoryKey PipelineConfig::memory_key(int after) const {
  const double ahead = in_flight(after);
  return {ahead, order.splits_backward() ? int(in_flight(num_stages - 1) - ahead) : 0,
          memory_error};
}

plan::Stage stage_of(const Layout& mesh, const std::string& group) {
  return {.nodes = mesh.nodes,
          .devices_per_node = mesh.devices_per_node,
          .microbatch = mesh.microbatch,
          .dp = mesh.dp,
          .cp = mesh.cp,
          .gather_keys = mesh.gather_keys,
          .tp = mesh.tp,
          .ep = mesh.ep,
          .dispatch_tokens = mesh.dispatch_tokens,
          .mlp_tiles = mesh.mlp_tiles,
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
          .gather_keys = mesh().gather_keys == 1,
          .dispatch_tokens = mesh().dispatch_tokens == 1,
          .mlp_tiles = mesh().mlp_tiles,
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
      const std::vector<plan::Order> orders = plan::orders_of_1f1b(config.shape(), search);
      std::map<int, std::vector<Layout>> together;  // by cp where ranks gather keys, else 0
      for (const Layout& layout : all) {
        if (!plan::may_hold(num_stages, layout.devices(), cluster, search)) continue;
        config.layouts = {layout};
        if (unequal)
          together[layout.gather_keys * layout.cp].push_back(layout);
        else
          add_orders(config, orders, found);
      }
      for (auto& [cp, layouts] : together) {
        config.layouts = std::move(layouts);
        add_orders(config, orders, found);
      }
    }
  return found;
}

std::vector<PipelineConfig> configs_in_other_orders(const model::Config& model, int global_batch,
                                                    const hardware::Cluster& cluster,
                                                    const deck::SearchKeys& search) {
  std::vector<PipelineConfig> found;
  if (cluster.num_groups() > 1 || !model.has_all_backwards()) return found;
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
      for (const plan::Order& order :
           plan::other_orders(config.shape(), model.num_layers, search)) {
        config.order = order;
        config.lone_ends = order.chunks > model.num_layers / num_stages;
        // A frozen embedding alone has no backward.
        if (config.lone_ends && model.frozen_blocks > 0) continue;
        if (order.splits_backward() && (layout.dispatch_tokens == 1 || layout.mlp_tiles > 1))
          continue;
        found.push_back(config);
      }
    }
  return found;
}

}  // namespace brume::tuner
