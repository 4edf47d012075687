#include "mist/deck.hpp"

namespace brume::mist {
namespace {

int zero_level(const Strategy& s) {
  if (s.shard_weights) return 3;
  if (s.shard_grads) return 2;
  return s.shard_optimizer ? 1 : 0;
}

Recompute recompute(const deck::SearchKeys& keys) {
  if (keys.recompute_all) return Recompute::all;
  return keys.recompute ? Recompute::some : Recompute::none;
}

}  // namespace

Job job_of(const model::Config& model, int global_batch, const hardware::Cluster& cluster,
           const hardware::Profile& profile, bool plain_attention) {
  Job job;
  job.model = model_of(model, plain_attention);
  job.hardware = hardware_of(profile, cluster);
  job.num_layers = model.num_layers;
  job.global_batch = global_batch;
  job.nodes = cluster.groups[0].nodes;
  job.ranks_per_node = cluster.groups[0].devices_per_node;
  job.time = [&profile, model = job.model, hardware = job.hardware](Layer layer, int microbatch,
                                                                    int tp) {
    return layer_time(model, hardware, profile, layer, microbatch, tp);
  };
  return job;
}

Space space_of(const deck::Deck& deck) {
  const deck::SearchKeys& keys = deck.search;
  Space space;
  space.tp = keys.tp;
  for (int tp = 1; keys.tp.empty() && tp <= deck.cluster.all_groups()[0].devices_per_node; tp *= 2)
    space.tp.push_back(tp);
  if (!keys.microbatch.empty()) space.microbatch = keys.microbatch;
  space.dp = keys.dp;
  space.stages = keys.stages;
  space.zero_levels = keys.zero_levels;
  space.recompute = recompute(keys);
  space.ends_data_parallel = deck.analysis.ends == "dp";
  space.offload_weights = keys.weight_offload;
  space.offload_grads = keys.grad_offload;
  space.offload_optimizer = keys.optim_offload;
  space.offload_saved = keys.act_offload;
  return space;
}

plan::Plan plan_of(const Case& mist) {
  plan::Plan plan;
  plan.microbatches = mist.microbatches;
  int first_layer = 0;
  for (const Stage& stage : mist.stages) {
    const Strategy& s = stage.strategy;
    plan.global_batch = s.microbatch * s.dp * mist.microbatches;
    plan.stages.push_back({.first_layer = first_layer,
                           .layers = stage.layers,
                           .nodes = stage.nodes,
                           .devices_per_node = stage.ranks_per_node,
                           .microbatch = s.microbatch,
                           .dp = s.dp,
                           .tp = s.tp,
                           .zero_level = zero_level(s),
                           .ckpt_layers = stage.recomputed,
                           .weight_offload_ratio = s.offload_weights,
                           .grad_offload_ratio = s.offload_grads,
                           .optim_offload_ratio = s.offload_optimizer,
                           .act_offload_ratio = s.offload_saved});
    first_layer += stage.layers;
  }
  return plan;
}

}  // namespace brume::mist
