/// @file Random small models and valid plans for them, for property tests.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "model/model.hpp"
#include "plan/plan.hpp"
#include "plan/shapes.hpp"

namespace brume::test {

inline int pick(std::mt19937& random, std::vector<int> values) {
  return values[std::uniform_int_distribution<std::size_t>(0, values.size() - 1)(random)];
}

inline model::Config random_model(std::mt19937& random) {
  const int heads = pick(random, {2, 4});
  return {.num_layers = pick(random, {2, 3, 4, 5}),
          .hidden_size = heads * pick(random, {8, 12, 16}),
          .num_heads = heads,
          .ffn_size = 4 * pick(random, {16, 24, 32}),
          .seq_len = pick(random, {8, 12, 16}),
          .vocab_size = pick(random, {31, 64, 97}),
          .tied_head = pick(random, {0, 1}) == 1};
}

/// A small model of one of the families that share key heads, or not, and of every other choice.
inline model::Config random_family_model(std::mt19937& random) {
  model::Config model = random_model(random);
  model.family = &model::family(pick(random, {0, 1}) == 1 ? "llama" : "falcon");
  model.num_kv_heads = pick(random, {1, 2, model.num_heads});
  if (pick(random, {0, 1, 2}) == 0) model.head_size = 10;
  model.qkv_bias = pick(random, {0, 1}) == 1;
  model.linear_bias = model.parallel() && pick(random, {0, 1}) == 1;
  model.layer_norms = model.parallel() ? pick(random, {1, 2}) : 2;
  return model;
}

/// Gives some models with experts groups where they fit, and a router by sigmoids, whose
/// corrections steps move; the generator stays as it is.
inline void choose_router(std::mt19937 random, model::Config& model) {
  if (pick(random, {0, 0, 1}) == 1) model.routed_scale = 1.4;
  if (pick(random, {0, 1}) == 1) {
    model.router = model::RouterKind::sigmoid;
    model.balance_rate = pick(random, {0, 1, 1}) * 0.02;
  }
  const int groups = pick(random, {1, 2, 4}), each = model.num_experts / groups;
  if (each < 2 || model.num_experts % groups != 0) return;
  model.expert_groups = groups;
  model.groups_per_token =
      std::max(pick(random, {1, 1, 2}), (model.experts_per_token + each - 1) / each);
  model.groups_per_token = std::min(model.groups_per_token, groups);
}

/// A small model with experts in place of MLPs.
inline model::Config random_experts_model(std::mt19937& random) {
  model::Config model = random_model(random);
  model.family = &model::family("llama");
  model.num_kv_heads = pick(random, {1, 2, model.num_heads});
  model.qkv_bias = model.linear_bias = false;
  model.qk_norm = pick(random, {0, 1}) == 1;
  model.num_experts = pick(random, {1, 4, 5, 8, 8, 16});
  model.experts_per_token = std::min(model.num_experts, pick(random, {1, 2, 3, 8}));
  model.expert_ffn_size = 4 * pick(random, {3, 5, 8});
  model.normalize_topk = pick(random, {0, 1}) == 1;
  model.balance_loss = pick(random, {0, 1}) * 0.1;
  model.z_loss = pick(random, {0, 1}) * 0.01;
  model.shared_expert_ffn_size = pick(random, {0, 16, 48});
  model.shared_expert_gate = model.shared_expert_ffn_size > 0 && pick(random, {0, 1}) == 1;
  model.first_dense_layers = std::min(pick(random, {0, 0, 1, 2}), model.num_layers - 1);
  choose_router(random, model);
  if (pick(random, {0, 1, 2}) > 0) return model;
  model.family = &model::family("gpt_oss");
  model.qkv_bias = model.linear_bias = true;
  model.qk_norm = model.shared_expert_gate = false;
  model.shared_expert_ffn_size = model.first_dense_layers = 0;
  model.window = pick(random, {0, 5});
  if (model.window > 0) model.windows = {true, false};
  model.rope_scaling = {.kind = model::RopeScaling::Kind::yarn,
                        .factor = 4.0,
                        .original_seq_len = 6,
                        .beta_fast = 2.0,
                        .beta_slow = 0.25};
  return model;
}

/// A small model of each family that has something of its own.
inline std::vector<model::Config> special_models() {
  const model::Config common{.num_layers = 4,
                             .hidden_size = 36,
                             .num_heads = 4,
                             .ffn_size = 52,
                             .seq_len = 12,
                             .vocab_size = 61,
                             .tied_head = false,
                             .qkv_bias = false,
                             .linear_bias = false};
  model::Config qwen3 = common;
  qwen3.family = &model::family("llama");
  qwen3.num_kv_heads = 2;
  qwen3.head_size = 10;
  qwen3.qk_norm = true;
  model::Config qwen3_moe = qwen3;
  qwen3_moe.num_experts = 5;
  qwen3_moe.experts_per_token = 3;
  qwen3_moe.expert_ffn_size = 28;
  qwen3_moe.normalize_topk = false;
  qwen3_moe.tied_head = true;
  model::Config mixtral = common;
  mixtral.family = &model::family("llama");
  mixtral.head_size = 10;
  mixtral.num_experts = 4;
  mixtral.experts_per_token = 2;
  mixtral.expert_ffn_size = 20;
  mixtral.balance_loss = 0.1;
  mixtral.z_loss = 0.01;
  model::Config qwen2_moe = mixtral;
  qwen2_moe.qkv_bias = true;
  qwen2_moe.normalize_topk = false;
  qwen2_moe.shared_expert_ffn_size = 24;
  qwen2_moe.shared_expert_gate = true;
  qwen2_moe.first_dense_layers = 1;
  model::Config olmoe = mixtral;
  olmoe.num_kv_heads = 2;
  olmoe.qk_norm = olmoe.qk_norm_joint = true;
  model::Config glm4_moe = mixtral;
  glm4_moe.num_kv_heads = 2;
  glm4_moe.rotary_size = 4;
  glm4_moe.num_experts = 8;
  glm4_moe.shared_expert_ffn_size = 20;
  glm4_moe.router = model::RouterKind::sigmoid;
  glm4_moe.expert_groups = 4;
  glm4_moe.groups_per_token = 2;
  glm4_moe.routed_scale = 2.5;
  glm4_moe.balance_rate = 0.01;
  glm4_moe.first_dense_layers = 1;
  model::Config gpt_oss = common;
  gpt_oss.family = &model::family("gpt_oss");
  gpt_oss.num_kv_heads = 2;
  gpt_oss.head_size = 10;
  gpt_oss.qkv_bias = gpt_oss.linear_bias = true;
  gpt_oss.num_experts = 4;
  gpt_oss.experts_per_token = 2;
  gpt_oss.expert_ffn_size = 20;
  gpt_oss.window = 5;
  gpt_oss.windows = {true, false};
  gpt_oss.rope_theta = 150000.0;
  gpt_oss.rope_scaling = {.kind = model::RopeScaling::Kind::yarn,
                          .factor = 32.0,
                          .original_seq_len = 4,
                          .truncate = false};
  gpt_oss.init_std = 0.05;
  model::Config deepseek = qwen2_moe;  // queries and values by their own sizes
  deepseek.shared_expert_gate = deepseek.qkv_bias = false;
  deepseek.shared_expert_ffn_size = 40;
  deepseek.head_size = 10;
  deepseek.rotary_size = 4;
  deepseek.kv_lora_rank = 20;
  deepseek.q_lora_rank = 24;
  deepseek.v_head_size = 8;
  model::Config latent = common;
  latent.family = &model::family("llama");
  latent.head_size = 10;
  latent.rotary_size = 6;
  latent.kv_lora_rank = 16;
  model::Config neox = common;
  neox.family = &model::family("neox");
  neox.head_size = 10;
  neox.rotary_size = 4;
  neox.qkv_bias = neox.linear_bias = true;
  model::Config sequential = neox;
  sequential.parallel_residual = false;
  sequential.tied_head = true;
  model::Config windowed = common;  // of two kinds of layers, which no stage has in equal numbers
  windowed.family = &model::family("llama");
  windowed.num_kv_heads = 1;
  windowed.head_size = 10;
  windowed.num_layers = 5;
  windowed.window = 5;
  windowed.windows = {true, true, false};
  windowed.window_rope_theta = 100.0;
  model::Config mistral = windowed;
  mistral.windows.clear();
  mistral.window_rope_theta = 0.0;
  model::Config gemma2 = windowed;
  gemma2.family = &model::family("gemma");
  gemma2.tied_head = true;
  gemma2.windows = {true, false};
  gemma2.window_rope_theta = 0.0;
  gemma2.query_scalar = 7.0;
  gemma2.attention_cap = 2.0;
  gemma2.logits_cap = 3.0;
  model::Config gemma3 = windowed;
  gemma3.family = &model::family("gemma");
  gemma3.qk_norm = true;
  gemma3.tied_head = true;
  // Smaller weights leave outputs so small that norms of them enlarge what was rounded.
  gemma2.init_std = gemma3.init_std = 0.15;
  return {qwen3, neox,     sequential, windowed, mistral, qwen3_moe, qwen2_moe, mixtral,
          olmoe, glm4_moe, deepseek,   latent,   gpt_oss, gemma2,    gemma3};
}

/// Freezes those parameters of a model whose names contain `part`.
inline void freeze(model::Config& model, const std::string& part) {
  model::freeze(
      model, [&](const model::Parameter& one) { return one.name.find(part) != std::string::npos; });
}

/// Of every fourth model the first blocks are frozen (the embedding, more of them, all but the
/// head), of the one after it some parameters of all blocks, of every twelfth both.
inline void freeze_some(int i, model::Config& model) {
  constexpr const char* parts[] = {"norm",      "mlp", "weight", "attention",
                                   "embedding", ".0.", "head"};
  if (i % 4 == 2) model.frozen_blocks = 1 + i / 4 % (model.num_layers + 1);
  if (i % 4 == 3 || i % 12 == 2) freeze(model, parts[i / 4 % 7]);
}

/// Gives a model an adapter of some linear layers, by the number of a plan. Terms of half of the
/// adapters have ranks and scales of their own. Besides every third one modules are trained whole:
/// norms, tables, or some of both.
/// @param in_every_layer  false: in every second one, so that layers are unlike
/// @param and_experts     besides the linear layers
inline void adapt(int i, model::Config& model, bool in_every_layer = true,
                  bool and_experts = false) {
  std::vector<model::Module> targets = model::adapter_targets(model);
  if (and_experts) std::ranges::copy(model::expert_targets(model), std::back_inserter(targets));
  model.adapter = {.rslora = i % 8 == 5};
  for (int t = 0; t < int(targets.size()); ++t) {
    if (i % 3 != 0 && (t + i) % 3 == 0) continue;
    const int own = i / 2 % 2 == 1 ? t % 3 : 0, rank = 1 + (i + 3 * own) % 7;
    const double scale = i % 2 == 0 ? 2.0 : 0.7;
    model.adapter.targets.push_back({targets[std::size_t(t)], rank, rank * scale * (1 + own / 2)});
  }
  for (int layer = i % 2; !in_every_layer && layer < model.num_layers; layer += 2)
    model.adapter.layers.push_back(layer);
  for (const model::Module module : model::modules_to_save(model)) {
    const bool norm = model::module_name(module).find("norm") != std::string::npos;
    const bool some = (int(module) + i / 3) % 2 == 0;
    if (i % 3 == 1 && (i / 3 % 3 == 0 ? norm : i / 3 % 3 == 1 ? !norm : some))
      model.adapter.saved.push_back(module);
  }
  model::freeze(model, [&](const model::Parameter& one) {
    return !one.id.is_adapter() && !model.adapter.saves(one.id.module);
  });
}

/// Gives a model rows that tp = 2 cuts between blocks, tp = 4 those of some models.
inline void take_rows_of_blocks(int i, model::Config& model) {
  model.num_heads = 4;
  if (model.num_heads % model.kv_heads() != 0) model.num_kv_heads = 2;
  model.hidden_size = 128, model.head_size = i % 3 == 0 ? 64 : 32;
  model.ffn_size = i % 3 == 0 ? 256 : 128;
  if (model.num_experts > 0) model.expert_ffn_size = model.ffn_size;
  if (model.latent()) model.kv_lora_rank = 128, model.v_head_size = 32;
  if (model.shared_expert_ffn_size > 0) model.shared_expert_ffn_size = model.ffn_size;
}

/// Gives a model an adapter of layers in blocks of 4 or 8 bits.
inline void quantize(int i, model::Config& model) {
  take_rows_of_blocks(i, model);
  adapt(i, model);
  model.quantization = i % 2 == 0 ? Quantization::nf4 : Quantization::int8;
}

inline bool trains_all(const model::Config& model) {
  return model.frozen_blocks == 0 && model.frozen_parameters.empty();
}

inline bool allows_tp(const model::Config& model, int tp) {
  return plan::tensor_fault(model, tp).empty() &&
         (!model.adapter.is_of_experts() || model.num_experts % tp == 0);
}

/// How a stage cuts a microbatch and its layers.
struct Split {
  int dp, tp, microbatch;
};

/// Spreads some stages over whole nodes, of more devices than tensor-parallel ranks, or of fewer.
inline void choose_nodes(std::mt19937& random, plan::Stage& stage) {
  const int nodes = pick(random, {1, 2, 4}), devices = stage.dp * stage.tp;
  if (devices % nodes != 0) return;
  const int on_node = devices / nodes;
  for (const int together : {stage.tp, stage.shard_ranks() * stage.tp})
    if (on_node % together != 0 && together % on_node != 0) return;
  stage.nodes = nodes;
  stage.devices_per_node = on_node;
}

/// Lets data-parallel ranks of some stages divide whole experts too.
inline void divide_experts(std::mt19937& random, const model::Config& model, plan::Stage& stage) {
  const int over_data = pick(random, {1, 2, 3, 4});
  plan::Stage changed = stage;
  changed.ep = stage.tp * over_data;
  if (over_data == 1 || stage.dp % over_data != 0 || model.num_experts % changed.ep != 0) return;
  if (!plan::tensor_fault(model, stage.tp, changed.ep).empty()) return;
  if (stage.devices_per_node % changed.ep != 0 && changed.ep % stage.devices_per_node != 0) return;
  if (stage.replicas > 1 &&
      (changed.state_ranks() % stage.replicas != 0 || changed.state_ranks() == stage.replicas))
    return;
  stage = changed;
}

/// Chooses how far stages run ahead, puts some of what some stages offload on disk, lets some keep
/// several replicas of what they shard, some store layers, some lie on several nodes, some step on
/// the host what they offload, some work on the MLP in tiles, and some divide whole experts; the
/// generator stays as it is.
inline void choose_later_knobs(std::mt19937 random, const model::Config& model, plan::Plan& plan) {
  plan.order.run_ahead = pick(random, {1, 2});
  for (plan::Stage& stage : plan.stages) {
    stage.optim_disk_ratio = pick(random, {0, 0, 0, 1, 2}) / 2.0 * stage.optim_offload_ratio;
    stage.act_disk_ratio = pick(random, {0, 0, 0, 1, 2}) / 2.0 * stage.act_offload_ratio;
  }
  for (plan::Stage& stage : plan.stages) {
    const int replicas = pick(random, {1, 2, 3});
    if (stage.zero_level > 0 && stage.dp % replicas == 0 && stage.dp > replicas)
      stage.replicas = replicas;
  }
  for (plan::Stage& stage : plan.stages)
    if (pick(random, {0, 1}) == 1)
      stage.stored_layers =
          std::uniform_int_distribution<int>(0, stage.layers - stage.ckpt_layers)(random);
  for (plan::Stage& stage : plan.stages) choose_nodes(random, stage);
  for (plan::Stage& stage : plan.stages)
    stage.host_update_ratio =
        pick(random, {0, 0, 1, 2}) / 2.0 * (stage.optim_offload_ratio - stage.optim_disk_ratio);
  if (model.num_experts == 0) {
    for (plan::Stage& stage : plan.stages) {
      plan::Stage changed = stage;
      changed.mlp_tiles = pick(random, {1, 1, 2, 3});
      if (plan::tile_fault(model, changed.split()).empty()) stage = changed;
    }
    return;
  }
  for (plan::Stage& stage : plan.stages)
    if ((pick(random, {0, 1, 1}) == 1 || model.adapter.is_of_experts()) &&
        model.num_experts % stage.tp == 0)
      stage.ep = stage.tp;
  for (plan::Stage& stage : plan.stages) divide_experts(random, model, stage);
  for (plan::Stage& stage : plan.stages) {
    plan::Stage changed = stage;
    changed.dispatch_tokens = pick(random, {0, 1});
    if (!plan.order.splits_backward() && plan::dispatch_fault(changed.split()).empty())
      stage = changed;
  }
}

/// A plan of stages that are cut so, with any number of layers and any combination of knobs.
inline plan::Plan plan_of(std::mt19937& random, const model::Config& model,
                          const std::vector<Split>& splits) {
  const int stages = int(splits.size());
  plan::Plan plan;
  plan.microbatches = pick(random, {1, 2, 3, 4, 5});
  plan.global_batch = splits[0].microbatch * splits[0].dp * plan.microbatches;
  std::vector<int> layers(splits.size(), 1);
  for (int left = model.num_layers - stages; left > 0; --left)
    ++layers[std::size_t(pick(random, {0, 1, 2, 3}) % stages)];
  int first = 0;
  for (std::size_t i = 0; i < splits.size(); ++i) {
    plan::Stage stage;
    stage.first_layer = first;
    stage.layers = layers[i];
    stage.devices_per_node = splits[i].dp * splits[i].tp;
    stage.microbatch = splits[i].microbatch;
    stage.dp = splits[i].dp;
    stage.tp = splits[i].tp;
    stage.zero_level = pick(random, {0, 1, 2, 3});
    stage.ckpt_layers = std::uniform_int_distribution<int>(0, stage.layers)(random);
    for (double* ratio : {&stage.weight_offload_ratio, &stage.grad_offload_ratio,
                          &stage.optim_offload_ratio, &stage.act_offload_ratio})
      *ratio = pick(random, {0, 0, 1, 2, 4}) / 4.0;
    plan.stages.push_back(stage);
    first += stage.layers;
  }
  choose_later_knobs(random, model, plan);
  return plan;
}

/// A plan of at most `max_ranks` ranks whose stages are cut alike.
inline plan::Plan random_plan(std::mt19937& random, const model::Config& model, int max_ranks) {
  int stages, dp, tp;
  do {
    stages = pick(random, {1, 1, 2, 3, 4});
    dp = pick(random, {1, 2, 3, 4});
    tp = pick(random, {1, 1, 2, 4});
  } while (stages * dp * tp > max_ranks || stages > model.num_layers || !allows_tp(model, tp));
  const int microbatch = pick(random, {1, 2});
  return plan_of(random, model, std::vector(std::size_t(stages), Split{dp, tp, microbatch}));
}

/// A plan of at most `max_ranks` >= 3 ranks whose stages differ in b, dp, tp or mesh.
inline plan::Plan mixed_plan(std::mt19937& random, const model::Config& model, int max_ranks) {
  while (true) {
    const int sequences = pick(random, {1, 2, 3, 4, 6});  // b dp of every stage
    const int stages = std::min(model.num_layers, pick(random, {2, 2, 3, 4}));
    std::vector<Split> splits;
    int ranks = 0;
    bool differ = false, valid = true;
    for (int i = 0; i < stages; ++i) {
      const int dp = pick(random, {1, 2, 3, 4, 6}), tp = pick(random, {1, 1, 2, 4});
      valid = valid && sequences % dp == 0 && allows_tp(model, tp);
      splits.push_back({dp, tp, sequences / dp});
      differ = differ || dp != splits[0].dp || tp != splits[0].tp;
      ranks += dp * tp;
    }
    if (valid && differ && ranks <= max_ranks) return plan_of(random, model, splits);
  }
}

/// A plan of at most `max_ranks` ranks in several stages whose backwards are in two parts, with any
/// combination of the knobs that allow it. The model gets the layers for it.
inline plan::Plan zero_bubble_plan(std::mt19937& random, model::Config& model, int max_ranks) {
  const int sequences = pick(random, {1, 2, 4});  // b dp of every stage
  std::vector<Split> splits;
  int ranks;
  do {
    splits.clear(), ranks = 0;
    for (int i = pick(random, {2, 2, 3, 4}); i > 0; --i) {
      int dp, tp;
      do dp = pick(random, {1, 1, 2, 4}), tp = pick(random, {1, 1, 2, 4});
      while (sequences % dp != 0 || !allows_tp(model, tp));
      splits.push_back({dp, tp, sequences / dp});
      ranks += dp * tp;
    }
  } while (ranks > max_ranks);
  model.num_layers = int(splits.size()) + pick(random, {0, 1, 2, 3});
  plan::Plan plan = plan_of(random, model, splits);
  plan.order.zero_bubble = 1;
  plan.microbatches = pick(random, {1, 2, 3, 4, 5, 6, 7, 9});
  plan.global_batch = sequences * plan.microbatches;
  for (plan::Stage& stage : plan.stages) {
    stage.zero_level = std::min(stage.zero_level, stage.shard_ranks() > 1 ? 1 : 3);
    stage.grad_offload_ratio = 0.0;
    stage.dispatch_tokens = 0;
    stage.mlp_tiles = 1;
  }
  return plan;
}

/// A plan of at most `max_ranks` ranks that hold several stages each, with any combination of the
/// other knobs, stages of one rank included. The model gets the layers for it.
inline plan::Plan interleaved_plan(std::mt19937& random, model::Config& model, int max_ranks) {
  const int sequences = pick(random, {1, 2, 4});  // b dp of every stage
  std::vector<Split> splits;
  int ranks = 0;
  do {
    splits.clear(), ranks = 0;
    for (int i = pick(random, {2, 2, 3, 4}); i > 0; --i) {
      int dp, tp;
      do dp = pick(random, {1, 1, 2, 4}), tp = pick(random, {1, 1, 2, 4});
      while (sequences % dp != 0 || !allows_tp(model, tp));
      splits.push_back({dp, tp, sequences / dp});
      ranks += dp * tp;
    }
  } while (ranks > max_ranks);
  const std::size_t size = splits.size();
  const int chunks = size == 2 ? pick(random, {2, 3, 4}) : pick(random, {2, 2, 3});
  for (std::size_t i = 0; i < size * std::size_t(chunks - 1); ++i) splits.push_back(splits[i]);
  model.num_layers = int(splits.size()) + pick(random, {0, 1, 2, 3});
  plan::Plan plan = plan_of(random, model, splits);
  plan.order.chunks = chunks;
  plan.microbatches = pick(random, {1, 2, 3, 4, 5, 6, 7, 9});
  plan.global_batch = sequences * plan.microbatches;
  for (std::size_t i = size; i < splits.size(); ++i) {
    plan.stages[i].replicas = plan.stages[i % size].replicas;
    plan.stages[i].ep = plan.stages[i % size].ep;
    plan.stages[i].mlp_tiles = plan.stages[i % size].mlp_tiles;
    plan.stages[i].zero_level = plan.stages[i % size].zero_level;
  }
  return plan;
}

/// Gives the layers of a plan's first stage, last one or both to the stage next to it, so that the
/// embedding or the head is alone.
inline void empty_ends(int i, plan::Plan& plan) {
  const int stages = plan.num_stages();
  const auto empty = [&](int end, int beside) {
    plan::Stage &from = plan.stages[std::size_t(end)], &to = plan.stages[std::size_t(beside)];
    if (to.layers == 0) return;
    to.layers += std::exchange(from.layers, 0);
    from.ckpt_layers = from.stored_layers = 0;
  };
  if (stages > 1 && i % 3 != 1) empty(0, 1);
  if (stages > 1 && i % 3 != 0) empty(stages - 1, stages - 2);
  int first = 0;
  for (plan::Stage& stage : plan.stages)
    stage.first_layer = std::exchange(first, first + stage.layers);
}

/// Lets ranks of a plan share sequences: data-parallel ranks of stages become context-parallel
/// ones, and every stage has so many sequences of a microbatch. Stages that gather keys have as
/// many such ranks as the first one.
/// @return whether any of them does; else the plan stays as it is
inline bool share_sequences(const model::Config& model, plan::Plan& plan, int sequences,
                            bool gather_keys = false) {
  plan::Plan changed = plan;
  for (plan::Stage& stage : changed.stages) {
    if (gather_keys && stage.data_ranks() != plan.stages.front().data_ranks()) {
      const plan::Stage& first = plan.stages.front();
      stage.nodes = first.nodes, stage.devices_per_node = first.devices_per_node;
      stage.dp = first.dp, stage.tp = first.tp, stage.ep = first.ep;
      stage.mlp_tiles = first.mlp_tiles;
      stage.replicas = first.replicas, stage.zero_level = first.zero_level;
    }
    const int ranks = stage.data_ranks();
    if (ranks % sequences != 0 && sequences % ranks != 0) return false;
    stage.dp = std::min(ranks, sequences);
    stage.cp = ranks / stage.dp;
    stage.microbatch = sequences / stage.dp;
    stage.gather_keys = gather_keys && stage.cp > 1;
    if (!plan::context_fault(model, stage.split()).empty()) return false;
    if (stage.microbatch * model.padded_len() / stage.cp % stage.tp != 0) return false;
  }
  changed.global_batch = sequences * changed.microbatches;
  const bool shares =
      std::ranges::any_of(changed.stages, [](const plan::Stage& stage) { return stage.cp > 1; });
  if (shares) plan = changed;
  return shares;
}

}  // namespace brume::test
