/// @file Models, profiles and random plans for tests of the planner.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "hardware/profile.hpp"
#include "plan/plan.hpp"

namespace brume::samples {

inline model::Config small_model(int num_layers = 4, bool tied_head = true) {
  return {.num_layers = num_layers,
          .hidden_size = 64,
          .num_heads = 4,
          .ffn_size = 256,
          .seq_len = 64,
          .vocab_size = 320,
          .tied_head = tied_head};
}

/// The same sizes in another family, with so many key heads.
inline model::Config small_llama(int num_layers, int kv_heads) {
  model::Config model = small_model(num_layers, false);
  model.family = &model::family("llama");
  model.num_kv_heads = kv_heads;
  model.qkv_bias = model.linear_bias = false;
  return model;
}
/// Gives a model latent attention, with heads as wide as before.
inline void make_latent(model::Config& model) {
  model.family = &model::family("llama");
  model.qkv_bias = model.linear_bias = false;
  model.num_kv_heads = model.num_heads;
  model.rotary_size = model.head_dim() / 4;
  model.kv_lora_rank = 2 * model.head_dim();
}
inline model::Config small_falcon(int num_layers, int kv_heads, int layer_norms) {
  model::Config model = small_model(num_layers, true);
  model.family = &model::family("falcon");
  model.num_kv_heads = kv_heads;
  model.layer_norms = layer_norms;
  model.qkv_bias = model.linear_bias = false;
  return model;
}

/// A machine with round numbers: no operator rows, so compute follows the roofline; links and
/// copies have latency and bandwidth.
inline hardware::Profile round_profile(int ranks_per_node = 8) {
  hardware::Profile profile;
  profile.key.ranks_per_node = ranks_per_node;
  profile.origin = "round numbers";
  profile.flops_per_s = 1e10;
  profile.bytes_per_s = 1e10;
  profile.task_overhead_s = 1e-6;
  for (const hardware::LinkKind kind : hardware::all_links)
    for (std::int64_t bytes : {1000, 1000000})
      profile.links.push_back({kind, 1, 2, bytes, 5e-6 + double(bytes) / 4e9});
  for (const auto kind : {hardware::CopyKind::copy_in, hardware::CopyKind::copy_out})
    for (std::int64_t bytes : {1000, 1000000})
      profile.copies.push_back({kind, bytes, 2e-6 + double(bytes) / 5e9});
  for (std::int64_t bytes : {1000, 1000000}) {
    profile.copies.push_back({hardware::CopyKind::disk_read, bytes, 2e-5 + double(bytes) / 2e9});
    profile.copies.push_back({hardware::CopyKind::disk_write, bytes, 2e-5 + double(bytes) / 1.2e9});
  }
  profile.waits = {{2, 0.02}, {4, 0.03}};
  profile.interference = {0.0, 0.1, 0.05, 0.05, 0.2, 0.0, 0.1, 0.1,
                          0.1, 0.2, 0.0,  0.3,  0.1, 0.2, 0.3, 0.0};
  return profile;
}

template <typename T>
T pick(std::mt19937& random, const std::vector<T>& choices) {
  return choices[random() % choices.size()];
}

/// A plan that `plan::check` accepts, for a model whose heads and FFN 1, 2 and 4 divide.
inline plan::Plan random_plan(std::mt19937& random, int num_layers, int max_stages = 4) {
  const int num_stages = 1 + int(random() % unsigned(std::min(max_stages, num_layers)));
  const int dp = pick<int>(random, {1, 2, 4}), tp = pick<int>(random, {1, 2, 4});
  const int b = pick<int>(random, {1, 2, 4}), microbatches = 1 + int(random() % 6);
  plan::Plan plan{
      .global_batch = b * dp * microbatches, .microbatches = microbatches, .stages = {}};
  int next = 0;
  for (int i = 0; i < num_stages; ++i) {
    const int after = num_stages - 1 - i, left = num_layers - next;
    const int layers = after == 0 ? left : 1 + int(random() % unsigned(left - after));
    plan.stages.push_back({.first_layer = next,
                           .layers = layers,
                           .nodes = 1,
                           .devices_per_node = dp * tp,
                           .microbatch = b,
                           .dp = dp,
                           .tp = tp,
                           .zero_level = int(random() % 2),
                           .ckpt_layers = int(random() % unsigned(layers + 1)),
                           .optim_offload_ratio = pick<double>(random, {0.0, 0.0, 0.3, 0.5, 1.0}),
                           .act_offload_ratio = pick<double>(random, {0.0, 0.0, 0.25, 0.5, 1.0})});
    next += layers;
  }
  std::mt19937 later(random);  // what came before stays as it is
  plan.order.run_ahead = 1 + int(later() % 2);
  for (plan::Stage& stage : plan.stages)
    if (later() % 2 == 0)
      stage.stored_layers = int(later() % unsigned(stage.layers - stage.ckpt_layers + 1));
  return plan;
}

/// The same plan with any ZeRO level, weights and gradients in part on the host.
inline plan::Plan with_moved_state(std::mt19937& random, plan::Plan plan) {
  for (plan::Stage& stage : plan.stages) {
    stage.zero_level = int(random() % 4);
    stage.weight_offload_ratio = pick<double>(random, {0.0, 0.0, 0.25, 0.5, 1.0});
    stage.grad_offload_ratio = pick<double>(random, {0.0, 0.0, 0.25, 0.5, 1.0});
  }
  return plan;
}

/// The same plan with none, half or all of what is offloaded stepped on the host.
inline plan::Plan with_host_updates(std::mt19937& random, plan::Plan plan) {
  for (plan::Stage& stage : plan.stages)
    stage.host_update_ratio = pick<double>(random, {0.0, 0.5, 1.0}) * stage.optim_offload_ratio;
  return plan;
}

/// The same plan with none, half or all of what is offloaded on disk.
inline plan::Plan with_disk(std::mt19937& random, plan::Plan plan) {
  for (plan::Stage& stage : plan.stages) {
    stage.optim_disk_ratio = pick<double>(random, {0.0, 0.5, 1.0}) * stage.optim_offload_ratio;
    stage.act_disk_ratio = pick<double>(random, {0.0, 0.5, 1.0}) * stage.act_offload_ratio;
  }
  return plan;
}

}  // namespace brume::samples
