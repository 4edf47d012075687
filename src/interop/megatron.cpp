/// @file A deck and a plan as arguments of Megatron-LM, and as its script.
#include "interop/megatron.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.hpp"
#include "megatron_arguments.hpp"
#include "plan/shapes.hpp"

namespace brume::interop {

void require_like(bool holds, const std::string& what) {
  require(holds, Failure::input, "the export to {} has no {}", megatron_version, what);
}

namespace {
/// What all stages must have alike there.
void check_stages(const plan::Plan& plan) {
  const plan::Stage& first = plan.stages[0];
  for (const plan::Stage& s : plan.stages) {
    require_like(s.group.empty(), "stages on several groups of nodes");
    const auto same = [&](auto plan::Stage::*member, const char* knob, const char* key) {
      require_like(s.*member == first.*member,
                   fmt::format("stages with different {} (plan for it with {})", knob, key));
    };
    same(&plan::Stage::microbatch, "microbatch", "search.unequal_stages = false");
    same(&plan::Stage::dp, "dp", "search.unequal_stages = false");
    same(&plan::Stage::cp, "cp", "search.unequal_stages = false");
    same(&plan::Stage::tp, "tp", "search.unequal_stages = false");
    same(&plan::Stage::ep, "ep", "search.unequal_stages = false");
    same(&plan::Stage::zero_level, "zero_level", "one of search.zero_levels");
    same(&plan::Stage::replicas, "replicas", "search.shard_within_node = false");
    same(&plan::Stage::optim_offload_ratio, "optim_offload_ratio", "one of search.optim_offload");
    require_like(s.weight_offload_ratio == 0.0,
                 "weight_offload_ratio above 0 (search.weight_offload = [0.0])");
    require_like(s.grad_offload_ratio == 0.0,
                 "grad_offload_ratio above 0 (search.grad_offload = [0.0])");
    require_like(s.act_offload_ratio == 0.0,
                 "act_offload_ratio above 0 (search.act_offload = [0.0])");
    require_like(!plan::uses_disk(s), "state on disk (cluster.disk_gib = 0)");
  }
  require_like(plan.order.chunks > 1 || plan.order.is_1f1b(),
               plan::order_text(plan) + " (search.trainer = \"megatron\")");
  if (plan.order.chunks > 1) {
    require_like(plan.order.run_ahead == 2, "run_ahead = 1 with virtual stages (run_ahead = 2)");
    require_like(
        plan.microbatches % plan.pipeline_size() == 0,
        fmt::format("interleaving of {} microbatches over {} stages: the number must be a multiple",
                    plan.microbatches, plan.pipeline_size()));
  }
  require_like(plan.num_stages() == 1 || plan.order.chunks > 1 || plan.order.run_ahead == 1,
               "run_ahead = 2 (search.run_ahead = [1])");
  require_like(plan.num_stages() == 1 || first.zero_level <= 1,
               fmt::format("zero_level {} with pipeline stages (search.zero_levels = [0, 1])",
                           first.zero_level));
}

void check_contexts(const plan::Stage& stage, const model::Config& model) {
  require_like(model.padding == 0, "padded sequences (a cp and a tp that divide model.seq_len)");
  if (stage.gather_keys == 1) return;
  const std::string fault = plan::paired_context_fault(model, stage.cp, stage.tp);
  require_like(fault.empty(), fault + " (search.trainer = \"megatron\")");
}

/// Layers of each stage: "Et*16|t*15L", "E|t*2|L", of stages alike nothing. Stages on the same
/// devices are its virtual ones.
void add_pipeline(Arguments& arguments, const plan::Plan& plan) {
  if (plan.num_stages() == 1) return;
  arguments.push_back({"--pipeline-model-parallel-size", as_argument(plan.pipeline_size())});
  if (plan.order.chunks > 1)
    arguments.push_back({"--num-virtual-stages-per-pipeline-rank", as_argument(plan.order.chunks)});
  const auto layers = [](const plan::Stage& stage) { return stage.layers; };
  if (std::ranges::all_of(plan.stages, [&](const plan::Stage& stage) {
        return layers(stage) == layers(plan.stages[0]);
      }))
    return;
  std::string layout = "E";
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    if (i > 0) layout += "|";
    if (layers(plan.stages[i]) > 0) layout += fmt::format("t*{}", layers(plan.stages[i]));
  }
  arguments.push_back({"--pipeline-model-parallel-layout", layout + "L"});
}

void add_recomputation(Arguments& arguments, const plan::Plan& plan) {
  const int layers = std::ranges::max(plan.stages, {}, &plan::Stage::ckpt_layers).ckpt_layers;
  bool all = true;
  for (const plan::Stage& stage : plan.stages) all = all && stage.ckpt_layers == stage.layers;
  if (all) {
    arguments.insert(arguments.end(), {{"--recompute-granularity", "full"},
                                       {"--recompute-method", "uniform"},
                                       {"--recompute-num-layers", "1"}});
    return;
  }
  for (const plan::Stage& stage : plan.stages)
    require_like(stage.ckpt_layers == layers || stage.layers == 0,
                 "stages with different full_recompute_layers: it has one number for all");
  // It recomputes the first so many layers of a stage where the plan has the last: the same work.
  if (layers > 0)
    arguments.insert(arguments.end(), {{"--recompute-granularity", "full"},
                                       {"--recompute-method", "block"},
                                       {"--recompute-num-layers", as_argument(layers)}});
}

void add_sharding(Arguments& arguments, const plan::Stage& stage) {
  const bool sharded = stage.data_ranks() > 1 && stage.zero_level > 0;
  if (sharded) arguments.push_back({"--use-distributed-optimizer"});
  if (sharded && stage.zero_level >= 2)
    arguments.insert(arguments.end(),
                     {{"--use-megatron-fsdp"},
                      {"--data-parallel-sharding-strategy",
                       stage.zero_level == 2 ? "optim_grads" : "optim_grads_params"},
                      {"--ckpt-format", "fsdp_dtensor"}});  // its parser asks for it
  if (sharded && stage.replicas > 1)
    arguments.push_back({"--num-distributed-optimizer-instances", as_argument(stage.replicas)});
  if (stage.data_ranks() > 1) arguments.push_back({"--overlap-grad-reduce"});
  if (sharded) arguments.push_back({"--overlap-param-gather"});
  if (stage.optim_offload_ratio > 0.0) {
    require_like(stage.zero_level <= 1, "offloaded optimizer state beside zero_level 2 or 3");
    arguments.insert(arguments.end(),
                     {{"--optimizer-cpu-offload"},
                      {"--optimizer-offload-fraction", as_argument(stage.optim_offload_ratio)},
                      {"--use-precision-aware-optimizer"}});
  }
}

void add_training(Arguments& arguments, const deck::Deck& deck, const model::Config& model) {
  const deck::TrainingKeys& training = deck.training;
  const deck::OptimizerKeys& optimizer = training.optimizer;
  if (model.precision == model::Precision::bf16) arguments.push_back({"--bf16"});
  if (model.precision == model::Precision::fp8)  // by Transformer Engine
    arguments.insert(arguments.end(),
                     {{"--bf16"}, {"--fp8-format", "hybrid"}, {"--fp8-recipe", "tensorwise"}});
  if (model.precision == model::Precision::fp16) arguments.push_back({"--fp16"});
  if (training.loss_scale > 0.0)
    arguments.push_back({"--loss-scale", as_argument(training.loss_scale)});
  require_like(optimizer.name == "adamw",
               fmt::format("training.optimizer.name = \"{}\"", optimizer.name));
  require_like(optimizer.moments == "fp32", "training.optimizer.moments");
  require_like(optimizer.groups.empty(), "training.optimizer.groups");
  require_like(training.adapter.rank == 0, "training.adapter");
  require_like(training.preference.beta == 0.0, "training.preference");
  require_like(training.epochs == 0.0, "training.epochs: say steps or tokens");
  const std::int64_t batch_tokens = std::int64_t{training.global_batch} * model.seq_len;
  const std::int64_t steps =
      training.steps > 0 ? training.steps
                         : (std::int64_t(training.tokens) + batch_tokens - 1) / batch_tokens;
  arguments.insert(arguments.end(),
                   {{"--train-iters", as_argument(steps)},
                    {"--lr", as_argument(optimizer.lr)},
                    {"--min-lr", as_argument(optimizer.lr * optimizer.min_lr_ratio)},
                    {"--lr-decay-style", optimizer.schedule == "wsd" ? "WSD" : optimizer.schedule},
                    {"--lr-warmup-iters", as_argument(optimizer.warmup_steps)},
                    {"--weight-decay", as_argument(optimizer.weight_decay)},
                    {"--adam-beta1", as_argument(optimizer.beta1)},
                    {"--adam-beta2", as_argument(optimizer.beta2)},
                    {"--adam-eps", as_argument(optimizer.eps)},
                    {"--clip-grad", as_argument(optimizer.clip_norm)},
                    {"--seed", as_argument(training.seed)}});
  if (optimizer.schedule == "wsd")
    arguments.insert(arguments.end(), {{"--lr-wsd-decay-style", "linear"},
                                       {"--lr-wsd-decay-iters",
                                        as_argument(optimizer.decay_steps > 0
                                                        ? optimizer.decay_steps
                                                        : std::max<std::int64_t>(1, steps / 10))}});
}

/// Lines of a script that set how many queues of work a device takes, where its parser asks for a
/// number.
std::string connections(const plan::Stage& stage) {
  if (stage.data_ranks() > 1 && stage.zero_level >= 2)
    return "# FSDP refuses 1.\n"
           "unset CUDA_DEVICE_MAX_CONNECTIONS\n";
  if (stage.tp > 1 || stage.cp > 1)
    return "# Tensor and context parallelism want this on devices before Blackwell.\n"
           "export CUDA_DEVICE_MAX_CONNECTIONS=1\n";
  return "";
}

}  // namespace

std::vector<MegatronArgument> megatron_arguments(const deck::Deck& deck, const model::Config& model,
                                                 const plan::Plan& plan) {
  check_stages(plan);
  check_contexts(plan.stages[0], model);
  for (const plan::Stage& stage : plan.stages)
    require_like(stage.mlp_tiles == 1, "MLP in tiles of tokens (search.mlp_tiles = [1])");
  const plan::Stage& stage = plan.stages[0];
  Arguments arguments;
  add_model(arguments, model);
  add_experts(arguments, model, stage);
  if (stage.tp > 1)
    arguments.insert(arguments.end(), {{"--tensor-model-parallel-size", as_argument(stage.tp)},
                                       {"--sequence-parallel"}});
  if (stage.cp > 1)
    arguments.insert(arguments.end(),
                     {{"--context-parallel-size", as_argument(stage.cp)},
                      {"--cp-comm-type", stage.gather_keys == 1 ? "all_gather" : "a2a"}});
  add_pipeline(arguments, plan);
  arguments.insert(arguments.end(), {{"--micro-batch-size", as_argument(stage.microbatch)},
                                     {"--global-batch-size", as_argument(plan.global_batch)}});
  add_sharding(arguments, stage);
  add_recomputation(arguments, plan);
  add_training(arguments, deck, model);
  return arguments;
}

std::string megatron_script(const deck::Deck& deck, const model::Config& model,
                            const plan::Plan& plan) {
  const Arguments arguments = megatron_arguments(deck, model, plan);
  const int per_node = std::min(deck.cluster.devices_per_node, plan.devices());
  const auto nodes = ceil_div(plan.devices(), per_node);
  std::string text = fmt::format(
      "#!/bin/sh\n"
      "# For {}: run this in its folder,\n"
      "# on {}, with arguments for data, tokenizer and checkpoints.\n"
      "{}exec torchrun --nnodes {} --nproc-per-node {}",
      megatron_version, nodes > 1 ? fmt::format("each of {} nodes", nodes) : "one node",
      connections(plan.stages[0]), nodes, per_node);
  if (nodes > 1)
    text +=
        " \\\n"
        "  --node-rank \"${NODE_RANK:?which of the nodes this is, from 0}\" \\\n"
        "  --master-addr \"${MASTER_ADDR:?the host name of node 0}\" \\\n"
        "  --master-port \"${MASTER_PORT:-29500}\"";
  text += " \\\n  pretrain_gpt.py";
  for (const auto& [name, value] : arguments) {
    const bool quoted = value.find_first_of("|*") != std::string::npos;
    text += fmt::format(" \\\n  {}{}", name,
                        value.empty() ? ""
                        : quoted      ? " '" + value + "'"
                                      : " " + value);
  }
  return text + " \\\n  \"$@\"\n";
}

}  // namespace brume::interop
