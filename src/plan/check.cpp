/// @file Whether a plan can run: against itself, the model and the cluster.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <tuple>

#include "base/device_limits.hpp"
#include "base/error.hpp"
#include "plan/knobs.hpp"
#include "plan/rules.hpp"
#include "plan/shapes.hpp"
#include "stage_needs.hpp"

namespace brume::plan {
namespace {

void check_layers(const Plan& plan, const model::Config& model) {
  int next = 0;
  for (int i = 0; i < plan.num_stages(); ++i) {
    const Stage& s = plan.stages[i];
    const int least = plan.may_lack_layers(i) ? 0 : 1;
    stage_needs(least <= s.layers && s.layers <= model.num_layers - next, i,
                "layers must be from {} to the {} that are left, found {}", least,
                model.num_layers - next, s.layers);
    stage_needs(s.first_layer == next, i,
                "first_layer must be {}, where the stage before it ends, found {}", next,
                s.first_layer);
    next += s.layers;
  }
  require(next == model.num_layers, Failure::input,
          "plan: the layers of its stages add up to {}, the model has {}", next, model.num_layers);
}

int group_of(const Plan& plan, int stage, const hardware::Cluster& cluster) {
  try {
    return cluster.index(plan.stages[stage].group);
  } catch (const Error& error) {
    throw Error(Failure::input, "plan: stage {}: group: {}", stage, error.what());
  }
}

/// A mesh lies within one node of its group, or on whole ones.
void check_mesh(const Plan& plan, int i, const hardware::NodeGroup& group) {
  const Stage& s = plan.stages[i];
  const int first = first_device(plan, i);
  // In 64 bits: a hand-written plan may hold any ints.
  const std::int64_t data_ranks = std::int64_t{s.dp} * s.cp, devices = data_ranks * s.tp;
  stage_needs(devices == std::int64_t{s.nodes} * s.devices_per_node, i,
              "dp x {}tp = {} x {}{} must be the {} x {} devices of its mesh",
              s.cp > 1 ? "cp x " : "", s.dp, s.cp > 1 ? fmt::format("{} x ", s.cp) : "", s.tp,
              s.nodes, s.devices_per_node);
  stage_needs(s.devices_per_node % s.tp == 0 || s.tp % s.devices_per_node == 0, i,
              "tp = {} must divide devices_per_node = {}, so that its groups stay within nodes, or "
              "be a multiple of it",
              s.tp, s.devices_per_node);
  const int on_node = first % group.devices_per_node;
  if (s.nodes == 1)
    stage_needs(std::int64_t{on_node} + s.devices_per_node <= group.devices_per_node, i,
                "its {} devices from rank {} on straddle nodes of {}", s.devices_per_node, first,
                group.devices_per_node);
  else
    stage_needs(
        on_node == 0 && s.devices_per_node == group.devices_per_node, i,
        "a mesh of several nodes must be whole nodes of {} devices, found {} from rank {} on",
        group.devices_per_node, s.devices_per_node, first);
  stage_needs(devices <= group.devices() - first, i,
              "its {} devices from rank {} on are more than the {} of its nodes", devices, first,
              group.devices());
}

/// Meshes fill the cluster; where it has several groups, whole nodes of each.
void check_meshes(const Plan& plan, const hardware::Cluster& cluster) {
  std::vector<int> used(cluster.groups.size(), 0);
  for (int i = 0; i < plan.pipeline_size(); ++i) {
    const Stage& s = plan.stages[i];
    const auto group = std::size_t(group_of(plan, i, cluster));
    check_mesh(plan, i, cluster.groups[group]);
    used[group] += s.devices();
  }
  if (cluster.num_groups() == 1)
    require(used[0] == cluster.devices(), Failure::input,
            "plan: its stages use {} devices, the cluster has {} ({})", used[0], cluster.devices(),
            cluster.text());
  for (std::size_t i = 0; i < used.size(); ++i) {
    const hardware::NodeGroup& group = cluster.groups[i];
    require(used[i] <= group.devices() && used[i] % group.devices_per_node == 0, Failure::input,
            "plan: its stages use {} devices of group '{}', which must be whole nodes of its {} x "
            "{}",
            used[i], group.name, group.nodes, group.devices_per_node);
  }
}

/// The pipeline goes over each node once.
void check_node_order(const Plan& plan, const hardware::Cluster& cluster) {
  if (plan.node_order.empty()) return;
  require(cluster.num_groups() == 1, Failure::input,
          "plan: node_order is for clusters of one group, this one has {}", cluster.num_groups());
  std::vector<int> nodes = plan.node_order;
  std::ranges::sort(nodes);
  bool each_once = std::ssize(nodes) == cluster.nodes();
  for (std::size_t i = 0; i < nodes.size(); ++i) each_once = each_once && nodes[i] == int(i);
  require(each_once, Failure::input,
          "plan: node_order must be the cluster's {} nodes, counted from 0, in any order, found "
          "[{}]",
          cluster.nodes(), fmt::join(plan.node_order, ", "));
}

/// Replicas lie alike on their nodes, several on each or each on several.
void check_replicas(const Plan& plan) {
  for (int i = 0; i < plan.num_stages(); ++i) {
    const Stage& s = plan.stages[i];
    if (s.replicas == 1) continue;
    stage_needs(s.zero_level > 0, i, "replicas must be 1 where zero_level = 0 shards nothing");
    stage_needs(s.state_ranks() % s.replicas == 0 && s.state_ranks() > s.replicas, i,
                "replicas must divide {}{} = {} into shards of at least 2 ranks, found {}",
                s.cp > 1 ? "dp x cp" : "dp", s.ep > s.tp ? " x tp / ep" : "", s.state_ranks(),
                s.replicas);
    const int devices = s.devices() / s.replicas;
    stage_needs(s.devices_per_node % devices == 0 || devices % s.devices_per_node == 0, i,
                "each of {} replicas takes {} devices, which must divide the {} on a node, or be "
                "whole nodes",
                s.replicas, devices, s.devices_per_node);
  }
}

/// Ranks that divide experts lie alike on their nodes.
void check_experts(const Stage& s, int i, const model::Config& model) {
  stage_needs(s.ep > 1 || s.tp == 1 || !model.adapter.is_of_experts(), i,
              "ep must be a multiple of tp = {} for adapters of experts, which must be whole",
              s.tp);
  if (s.ep == 1) return;
  stage_needs(model.num_experts > 0, i, "ep must be 1 for a model without experts, found {}", s.ep);
  stage_needs(s.ep % s.tp == 0 && s.data_ranks() % (s.ep / s.tp) == 0, i,
              "ep must be 1, or tp = {} times a divisor of {} = {}, found {}", s.tp,
              s.cp > 1 ? "dp x cp" : "dp", s.data_ranks(), s.ep);
  stage_needs(model.num_experts % s.ep == 0, i, "ep = {} must divide num_experts = {}", s.ep,
              model.num_experts);
  stage_needs(s.devices_per_node % s.ep == 0 || s.ep % s.devices_per_node == 0, i,
              "ep = {} ranks must divide the {} on a node, or be whole nodes", s.ep,
              s.devices_per_node);
}

void check_split(const Plan& plan, const model::Config& model) {
  for (int i = 0; i < plan.num_stages(); ++i) {
    const Stage& s = plan.stages[i];
    stage_needs(s.ckpt_layers <= s.layers, i,
                "full_recompute_layers must be from 0 to its {} layers, found {}", s.layers,
                s.ckpt_layers);
    stage_needs(
        s.stored_layers <= s.layers - s.ckpt_layers, i,
        "no_recompute_layers must be from 0 to the {} of its layers that are not recomputed, "
        "found {}",
        s.layers - s.ckpt_layers, s.stored_layers);
    const std::int64_t sequences = std::int64_t{s.microbatch} * s.dp;
    stage_needs(plan.global_batch % plan.microbatches == 0 &&
                    sequences == plan.global_batch / plan.microbatches,
                i, "microbatch x dp x microbatches = {} x {} x {} must be global_batch = {}",
                s.microbatch, s.dp, plan.microbatches, plan.global_batch);
    check_experts(s, i, model);
    if (s.ep == 1)
      stage_needs(model.inner_size() % s.tp == 0, i, "tp = {} must divide {} = {}", s.tp,
                  model.num_experts > 0 ? "expert_ffn_size" : "ffn_size", model.inner_size());
    for (const std::string& fault :
         {tensor_fault(model, s.tp, s.ep), context_fault(model, s.split()),
          dispatch_fault(s.split()), tile_fault(model, s.split())})
      stage_needs(fault.empty(), i, "{}", fault);
    const std::int64_t tokens = std::int64_t{s.microbatch} * model.computed_tokens() / s.cp;
    stage_needs(tokens % s.tp == 0, i,
                "tp = {} must divide microbatch x seq_len{} = {} x {}{}, the tokens that its ranks "
                "share between segments",
                s.tp, s.cp > 1 ? " / cp" : "", s.microbatch, model.computed_tokens(),
                s.cp > 1 ? fmt::format(" / {}", s.cp) : "");
  }
  require(orders_tokens_alike(plan), Failure::input,
          "plan: all stages must have the same cp and gather_keys if one has gather_keys = 1, "
          "because tokens then have zigzag order");
}

/// The products of an optimizer of whole matrices are the device's.
void check_optimizer(const Plan& plan, const model::Config& model) {
  if (model.optimizer->unit() == model::UpdateUnit::element) return;
  for (int i = 0; i < plan.num_stages(); ++i)
    stage_needs(plan.stages[i].host_update_ratio == 0.0, i,
                "host_update_ratio must be 0 for optimizer \"{}\", whose whole matrices the "
                "device updates",
                model.optimizer->name);
}

/// Attention, and the gradient of the token table, which the first stage adds up.
void check_kernels(const Plan& plan, const model::Config& model, const hardware::Cluster& cluster) {
  for (int i = 0; i < plan.num_stages(); ++i) {
    if (!cluster.groups[group_of(plan, i, cluster)].on_device) continue;
    const Stage& stage = plan.stages[i];
    const std::string fault = device_fault(model, stage.split());
    stage_needs(fault.empty(), i, "{}", fault);
    const int tokens = model.padded_len() / stage.cp;
    stage_needs(i > 0 || !model.trains_table() ||
                    std::int64_t{stage.microbatch} * tokens <= device_limits::sorted_tokens,
                i,
                "microbatch has too many tokens for the kernels of GPUs: found {} x {}, expected "
                "at most {}. Lower microbatch",
                stage.microbatch, tokens, device_limits::sorted_tokens);
  }
}

}  // namespace

void check_model(const model::Config& model, const hardware::Cluster& cluster) {
  if (model.quantization != Quantization::none) {
    const bool trains = model.has_backward(model.num_layers + 1);
    require(!trains || model.adapter.exists(), Failure::input,
            "model.quantization = \"{}\" is for matrices that nothing trains: set "
            "training.adapter.rank, or remove it",
            brume::name(model.quantization));
    require(model::num_quantized(model) > 0, Failure::input,
            "model.quantization = \"{}\": no matrix of this model has rows of a multiple of {} "
            "values. Remove it",
            brume::name(model.quantization), quantized_block);
  }
  require(
      model.moments != Moments::fp8 || model::num_blocked_moments(model) > 0, Failure::input,
      "training.optimizer.moments = \"fp8\": no trained parameter of layers or head has rows of "
      "a multiple of {} values. Set \"bf16\" or \"fp32\"",
      quantized_block);
  if (std::ranges::none_of(cluster.groups, &hardware::NodeGroup::on_device)) return;
  require(model.head_dim() <= device_limits::head_size, Failure::input,
          "model.num_heads: heads are too large for the kernels of GPUs: found {} features, "
          "expected at most {}. Use more heads, or train on CPUs",
          model.head_dim(), device_limits::head_size);
  const std::string fault = device_fault(model, {.cp = cluster.devices(), .gather_keys = 1});
  require(fault.empty(), Failure::input, "model.seq_len: {}", fault);
}

void check(const Plan& plan, const model::Config& model, const hardware::Cluster& cluster) {
  require(!plan.stages.empty(), Failure::input, "plan: it needs at least one stage");
  check_ranges(plan);
  check_order(plan, model);
  check_layers(plan, model);
  check_meshes(plan, cluster);
  check_node_order(plan, cluster);
  check_replicas(plan);
  check_split(plan, model);
  check_optimizer(plan, model);
  check_model(model, cluster);
  check_kernels(plan, model, cluster);
}

}  // namespace brume::plan
