/// @file Random plans of models of real sizes, for clusters whose profiles come with the program.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "hardware/cluster.hpp"
#include "hardware/machine.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace brume::test {

/// A plan, and all that its time follows from.
struct ClusterPlan {
  std::string profile;
  hardware::Cluster cluster;
  hardware::Machine machine;
  model::Config model;
  plan::Plan plan;

  /// "a100-40 4x8": the profile, the nodes and the devices of each.
  std::string name() const {
    const hardware::NodeGroup& group = cluster.groups.front();
    return profile + " " + std::to_string(group.nodes) + "x" +
           std::to_string(group.devices_per_node);
  }
  /// Whether all stages have the same mesh and strategy, but for their layers.
  bool equal_stages() const {
    return std::ranges::all_of(plan.stages, [&](plan::Stage stage) {
      const plan::Stage& first = plan.stages.front();
      stage.first_layer = first.first_layer;
      stage.layers = first.layers;
      stage.ckpt_layers = first.ckpt_layers;
      return stage == first;
    });
  }
};

/// The same with backwards in two parts, which need all gradients in their place.
inline ClusterPlan split_backwards(ClusterPlan sample) {
  sample.plan.order.zero_bubble = 1;
  for (plan::Stage& stage : sample.plan.stages) stage.zero_level = std::min(stage.zero_level, 1);
  return sample;
}

/// Draws plans of 2 to 8 stages whose memory nobody limits. In half of them all stages have the
/// same mesh and strategy, and numbers of layers that differ by a few at most.
class ClusterPlans {
 public:
  explicit ClusterPlans(unsigned seed) : random_(seed) {}

  ClusterPlan next(int most_devices) {
    while (true) {
      const std::string profile = pick<std::string>({"a100-40", "h200", "l4", "l4-backup"});
      const int nodes = pick<int>({1, 2, 4, 8});
      hardware::Machine machine(hardware::load_profile(profile));
      const int per_node = machine.profile(0).key.ranks_per_node;
      if (nodes * per_node > most_devices) continue;
      const model::Config model = next_model();
      const std::optional<plan::Plan> plan = next_plan(model, nodes, per_node);
      if (!plan) continue;
      hardware::Cluster cluster;
      cluster.groups = {{.nodes = nodes,
                         .devices_per_node = per_node,
                         .memory_bytes = std::int64_t{1} << 50,
                         .host_memory_bytes = std::int64_t{1} << 50}};
      return {profile, cluster, std::move(machine), model, *plan};
    }
  }

 private:
  template <typename T>
  T pick(const std::vector<T>& choices) {
    return choices[random_() % choices.size()];
  }

  model::Config next_model() {
    model::Config model{.num_layers = pick<int>({8, 12, 16, 24, 32}),
                        .hidden_size = 128 * pick<int>({8, 16, 20, 32}),
                        .num_heads = 32,
                        .seq_len = pick<int>({1024, 2048, 4096}),
                        .vocab_size = pick<int>({32000, 50304, 128256}),
                        .tied_head = pick<int>({0, 1}) == 1};
    model.ffn_size = 4 * model.hidden_size;
    model.precision = model::Precision::bf16;
    if (pick<int>({0, 1}) == 1) {
      model.family = &model::family("llama");
      model.num_kv_heads = 8;
      model.qkv_bias = model.linear_bias = false;
      model.ffn_size = 7 * model.hidden_size / 2;
    }
    return model;
  }

  /// Devices of each stage: they fill the cluster in order, within a node or in whole nodes. Empty
  /// where no draw does.
  std::vector<int> next_meshes(int stages, int devices, int per_node) {
    constexpr int draws = 50;
    for (int draw = 0; draw < draws; ++draw) {
      std::vector<int> meshes;
      int left = devices;
      for (int i = 0; i < stages && left > 0; ++i) {
        const int on_node = per_node - (devices - left) % per_node;
        std::vector<int> fitting;
        for (int mesh = 1; mesh <= left; mesh *= 2)
          if (mesh <= on_node || (on_node == per_node && mesh % per_node == 0))
            fitting.push_back(mesh);
        const int mesh = i + 1 == stages ? left : pick(fitting);
        if (std::ranges::find(fitting, mesh) == fitting.end()) break;
        meshes.push_back(mesh);
        left -= mesh;
      }
      if (left == 0 && int(meshes.size()) == stages) return meshes;
    }
    return {};
  }

  std::optional<plan::Plan> next_plan(const model::Config& model, int nodes, int per_node) {
    const int devices = nodes * per_node;
    const int stages = pick<int>({2, 2, 3, 4, 4, 5, 6, 8});
    if (stages > devices || stages > model.num_layers) return {};
    const bool alike = pick<int>({0, 1}) == 1;
    if (alike && devices % stages != 0) return {};
    const std::vector<int> meshes = alike ? std::vector(std::size_t(stages), devices / stages)
                                          : next_meshes(stages, devices, per_node);
    if (meshes.empty()) return {};
    const int sequences = pick<int>({1, 2, 4, 8, 16, 32});  // in a microbatch, over all of dp
    const int ckpt = pick<int>({0, 0, 1, 2}), tp_of_all = pick<int>({1, 1, 2, 4});
    const auto knobs = [&](plan::Stage& stage) {
      stage.zero_level = pick<int>({0, 1, 1, 2, 3});
      stage.optim_offload_ratio = pick<int>({0, 0, 0, 1}) / 2.0;
      stage.act_offload_ratio = pick<int>({0, 0, 0, 1}) / 2.0;
    };
    plan::Stage of_all;
    knobs(of_all);
    plan::Plan plan{.microbatches = pick<int>({8, 16, 32}),
                    .order = {.run_ahead = pick<int>({1, 2})},
                    .stages = {}};
    plan.global_batch = sequences * plan.microbatches;
    int first = 0, used = 0;
    for (int mesh : meshes) {
      used += mesh;
      // Layers in proportion to devices, as in plans that are any good, and a little beside it.
      const int end = used == devices
                          ? model.num_layers
                          : model.num_layers * used / devices + pick<int>({-1, 0, 0, 1});
      plan::Stage stage = of_all;
      stage.first_layer = first;
      stage.layers = end - first;
      if (stage.layers < 1) return {};
      stage.nodes = mesh <= per_node ? 1 : mesh / per_node;
      stage.devices_per_node = mesh / stage.nodes;
      stage.tp = alike ? tp_of_all : pick<int>({1, 1, 2, 4});
      if (stage.devices_per_node % stage.tp != 0) return {};
      stage.dp = mesh / stage.tp;
      if (sequences % stage.dp != 0) return {};
      stage.microbatch = sequences / stage.dp;
      if (stage.microbatch > 8) return {};
      stage.ckpt_layers = ckpt == 0 ? 0 : ckpt == 1 ? stage.layers : stage.layers / 2;
      if (!alike) knobs(stage);
      plan.stages.push_back(stage);
      first = end;
    }
    std::mt19937 random = random_;  // the generator stays as it is
    for (plan::Stage& stage : plan.stages)
      if (stage.zero_level > 0 && stage.dp > stage.nodes && random() % 2 == 0)
        stage.replicas = stage.nodes;
    return plan;
  }

  std::mt19937 random_;
};

}  // namespace brume::test
