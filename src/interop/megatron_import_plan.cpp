/// @file The plan that arguments of Megatron-LM describe.
#include "megatron_import_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "pipeline_layout.hpp"
#include "plan/shapes.hpp"

namespace brume::interop {
namespace {

constexpr const char* one_chunk =
    "the plan has one chunk of layers a stage, so its pipeline fills more slowly";

/// Chunks of layers of each stage.
/// @param num_layers  of the model, and of embedding and head if they count as layers
int num_chunks(GivenArguments& given, int num_layers, int num_stages) {
  const int chunks = given.number<int>("num-virtual-stages-per-pipeline-rank").value_or(1);
  const std::optional<int> layers = given.number<int>("num-layers-per-virtual-pipeline-stage");
  if (!layers || num_stages == 1) return num_stages == 1 ? 1 : chunks;
  if (num_layers % (std::int64_t{*layers} * num_stages) != 0)
    given.refuse("--num-layers-per-virtual-pipeline-stage {}: {} layers do not go into {} stages",
                 *layers, num_layers, num_stages);
  return num_layers / (*layers * num_stages);
}

/// Layers of each stage, of the first chunk of all stages first.
std::vector<int> stage_layers(GivenArguments& given, int num_layers, int num_stages,
                              std::vector<std::string>& notes) {
  const int embedding = given.has("account-for-embedding-in-pipeline-split") ? 1 : 0,
            loss = given.has("account-for-loss-in-pipeline-split") ? 1 : 0;
  const int counted = num_layers + embedding + loss;
  const int chunks = num_chunks(given, counted, num_stages);
  if (const std::optional<std::string> layout = given.text("pipeline-model-parallel-layout")) {
    try {
      const PipelineLayout read = read_layout(*layout, num_layers, num_stages);
      if (read.joined)
        notes.push_back(
            fmt::format("--pipeline-model-parallel-layout: a part without layers is "
                        "joined to a neighbour, and {}",
                        one_chunk));
      return read.layers;
    } catch (const Error& error) {
      given.refuse("--pipeline-model-parallel-layout: {}", error.what());
    }
  }
  const std::optional<int> first = given.number<int>("decoder-first-pipeline-num-layers"),
                           last = given.number<int>("decoder-last-pipeline-num-layers");
  if (counted > num_layers && (first || last))
    given.refuse("--account-for-...-in-pipeline-split excludes --decoder-...-pipeline-num-layers");
  const std::int64_t rest = std::int64_t{counted} - first.value_or(0) - last.value_or(0);
  const int alike = num_stages - (first ? 1 : 0) - (last ? 1 : 0);
  if (alike < 0 || rest < alike || (alike == 0 ? rest != 0 : rest % alike != 0))
    given.refuse("{} layers do not go into {} stages that are alike{}", num_layers, num_stages,
                 first || last ? " but for the first and last" : "");
  std::vector<int> layers(std::size_t(num_stages), alike > 0 ? int(rest / alike) : 0);
  if (first) layers.front() = *first;
  if (last) layers.back() = *last;
  for (int& of_stage : layers) {
    if (of_stage % chunks != 0)
      given.refuse("{} layers of a stage do not go into {} chunks", of_stage, chunks);
    of_stage /= chunks;
  }
  std::vector<int> all;
  for (int i = 0; i < chunks; ++i) all.insert(all.end(), layers.begin(), layers.end());
  all.front() -= embedding;
  all.back() -= loss;
  return all;
}

int zero_level(GivenArguments& given) {
  const std::string strategy =
      given.text("data-parallel-sharding-strategy").value_or("optim_grads_params");
  given.text("ckpt-format");  // that of checkpoints, which FSDP asks for
  const bool fsdp = given.has("use-megatron-fsdp"), torch = given.has("use-torch-fsdp2"),
             sharded = given.has("use-distributed-optimizer");
  if (torch) return 3;
  if (!fsdp) return sharded ? 1 : 0;
  const std::string strategies[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};
  const auto found = std::ranges::find(strategies, strategy);
  if (found == std::end(strategies))
    given.refuse("--data-parallel-sharding-strategy '{:.80}' is not known", strategy);
  return int(found - strategies);
}

/// Recomputed layers of a stage.
int ckpt_layers(GivenArguments& given, int layers, std::vector<std::string>& notes) {
  const std::string what = given.text("recompute-granularity").value_or("");
  if (given.has("recompute-activations") || what == "selective")
    notes.push_back("selective recomputation is left out: attention's scores are never kept here");
  if (what != "full") return 0;
  const int count = given.number<int>("recompute-num-layers").value_or(1);
  if (given.text("recompute-method") == "block") return std::min(count, layers);
  if (count > 1)
    notes.push_back(
        "--recompute-num-layers: each layer keeps its input here, not each group of them");
  return layers;
}

/// The exchange of ranks that divide experts: Stage::dispatch_tokens.
int dispatch_tokens(GivenArguments& given, const model::Split& split,
                    std::vector<std::string>& notes) {
  const std::string type = given.text("moe-token-dispatcher-type").value_or("allgather");
  if (type != "allgather" && type != "alltoall" && type != "flex")
    given.refuse("--moe-token-dispatcher-type {:.80}: Brume has allgather and alltoall", type);
  if (split.expert_data_ranks() == 1 || type == "allgather") return 0;
  if (type != "alltoall")
    notes.push_back("--moe-token-dispatcher-type " + type + ": ranks send tokens, as by alltoall");
  return 1;
}

}  // namespace

plan::Plan read_plan(GivenArguments& given, const deck::Deck& deck, const model::Config& model,
                     const hardware::Cluster& cluster, std::vector<std::string>& notes) {
  const int tp = given.number<int>("tensor-model-parallel-size").value_or(1);
  const int stages = given.number<int>("pipeline-model-parallel-size").value_or(1);
  const int ep = given.number<int>("expert-model-parallel-size").value_or(1);
  const int expert_tp = given.number<int>("expert-tensor-parallel-size").value_or(tp);
  const bool whole = expert_tp == 1 && ep % tp == 0, are_cut = ep == 1 && expert_tp == tp;
  if (model.num_experts > 0 && !whole && !are_cut)
    given.refuse(
        "--expert-model-parallel-size {} with --expert-tensor-parallel-size {}: in Brume the first "
        "is 1 and the second --tensor-model-parallel-size {}, or the first a multiple of that and "
        "the second 1",
        ep, expert_tp, tp);
  if (model.num_experts == 0 && ep != 1)
    given.refuse("--expert-model-parallel-size {}: the model has no experts", ep);
  const int cp = given.number<int>("context-parallel-size").value_or(1);
  const std::string exchange = given.text("cp-comm-type").value_or("p2p");
  const int gather_keys = cp > 1 && exchange != "a2a" ? 1 : 0;
  const int b = given.needed<int>("micro-batch-size");
  const int devices = cluster.devices(), per_node = deck.cluster.devices_per_node;
  if (std::int64_t{tp} * stages > devices || std::int64_t{tp} * stages * cp > devices ||
      devices % (tp * stages * cp) != 0)
    given.refuse(
        "tensor parallelism {} x pipeline {}{} does not go into {} devices: say how many there "
        "are by --set cluster.nodes=N and cluster.devices_per_node=N",
        tp, stages, cp > 1 ? fmt::format(" x context parallelism {}", cp) : "", devices);
  if (const std::string fault = plan::context_fault(
          model, {.tp = tp, .microbatch = b, .cp = cp, .gather_keys = gather_keys});
      !fault.empty())
    given.refuse("--context-parallel-size {}: {}", cp, fault);
  if (gather_keys == 1 && exchange != "all_gather")
    notes.push_back("--cp-comm-type " + exchange +
                    ": ranks gather keys and values here, as by all_gather");
  const int dp = devices / (tp * stages * cp), batch = deck.training.global_batch;
  if (batch % (std::int64_t{b} * dp) != 0)
    given.refuse(
        "--global-batch-size {} is no multiple of --micro-batch-size {} x {} data-parallel "
        "ranks",
        batch, b, dp);
  const int data_ranks = dp * cp, of_stage = data_ranks * tp;
  const plan::Stage divided{.dp = dp, .cp = cp, .tp = tp, .ep = ep};
  if (data_ranks % divided.expert_data_ranks() != 0)
    given.refuse("--expert-model-parallel-size {} does not divide the {} devices of a stage", ep,
                 of_stage);
  const int state_ranks = divided.state_ranks();
  const int sends = dispatch_tokens(given, divided.split(), notes);
  if (of_stage > per_node && of_stage % per_node != 0)
    given.refuse("a stage of {} devices is no whole number of nodes with {}", of_stage, per_node);
  const int asked_zero = data_ranks > 1 ? zero_level(given) : 0;
  const int zero = state_ranks > 1 ? asked_zero : 0;
  const int replicas = given.number<int>("num-distributed-optimizer-instances").value_or(1);
  if (data_ranks % replicas != 0)
    given.refuse("--num-distributed-optimizer-instances {} does not divide {} data-parallel ranks",
                 replicas, data_ranks);
  const double offloaded =
      given.has("optimizer-cpu-offload")
          ? given.number<double>("optimizer-offload-fraction", 0.0).value_or(1.0)
          : 0.0;
  plan::Plan plan{
      .global_batch = batch, .microbatches = int(batch / (std::int64_t{b} * dp)), .stages = {}};
  int first_layer = 0;
  const std::vector<int> all_layers = stage_layers(given, model.num_layers, stages, notes);
  plan.order.chunks = int(all_layers.size()) / stages;
  if (plan.order.chunks > 1) plan.order.run_ahead = 2;  // as its pipelines fill
  for (const int layers : all_layers) {
    const int recomputed = ckpt_layers(given, layers, notes);
    plan.stages.push_back({.first_layer = first_layer,
                           .layers = layers,
                           .nodes = std::max(1, of_stage / per_node),
                           .devices_per_node = std::min(per_node, of_stage),
                           .microbatch = b,
                           .dp = dp,
                           .cp = cp,
                           .gather_keys = gather_keys,
                           .tp = tp,
                           .ep = ep,
                           .dispatch_tokens = sends,
                           // One rank an instance shards nothing.
                           .zero_level = state_ranks > replicas ? zero : 0,
                           .replicas = zero > 0 && state_ranks > replicas ? replicas : 1,
                           .ckpt_layers = recomputed,
                           .stored_layers = layers - recomputed,  // it keeps what it does not drop
                           .optim_offload_ratio = offloaded});
    first_layer += layers;
  }
  if (!given.has("sequence-parallel") && tp > 1)
    notes.push_back("tensor parallelism is always with --sequence-parallel here");
  if (!given.has("overlap-grad-reduce") && data_ranks > 1)
    notes.push_back(
        "gradients are always reduced beside the backward here (--overlap-grad-reduce)");
  given.has("overlap-param-gather");
  given.has("use-precision-aware-optimizer");
  return plan;
}

}  // namespace brume::interop
