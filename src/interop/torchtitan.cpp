#include "interop/torchtitan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.hpp"

namespace brume::interop {
namespace {

/// Refuses what TorchTitan has nothing like.
void require_there(bool holds, const std::string& what) {
  require(holds, Failure::input, "{} cannot express {}", torchtitan_version, what);
}

/// A model that comes with it.
struct Shipped {
  const char* folder;    ///< of torchtitan/models
  const char* function;  ///< of its config_registry.py
  const char* flavor;    ///< of its model_registry, where that function has another model; else ""
  int num_layers, hidden_size, num_heads, num_kv_heads, head_dim;
  int ffn_size;  ///< of an MLP, or of each expert
  int vocab_size;
  double rope_theta = 500000.0, norm_eps = 1e-5;
  bool tied_head = false, qk_norm = false;
  int num_experts = 0, experts_per_token = 0;
};
constexpr Shipped shipped[] = {
    {"llama3", "llama3_8b", "", 32, 4096, 32, 8, 128, 14336, 128256},
    {"llama3", "llama3_70b", "", 80, 8192, 64, 8, 128, 28672, 128256},
    {"llama3", "llama3_405b", "", 126, 16384, 128, 8, 128, 53248, 128256},
    {"qwen3", "qwen3_0_6b", "", 28, 1024, 16, 8, 128, 3072, 151936, 1e6, 1e-6, true, true},
    {"qwen3", "qwen3_1_7b", "", 28, 2048, 16, 8, 128, 6144, 151936, 1e6, 1e-6, true, true},
    {"qwen3", "qwen3_1_7b", "4B", 36, 2560, 32, 8, 128, 9728, 151936, 1e6, 1e-6, true, true},
    {"qwen3", "qwen3_14b", "8B", 36, 4096, 32, 8, 128, 12288, 151936, 1e6, 1e-6, false, true},
    {"qwen3", "qwen3_14b", "", 40, 5120, 40, 8, 128, 17408, 151936, 1e6, 1e-6, false, true},
    {"qwen3", "qwen3_32b", "", 64, 5120, 64, 8, 128, 25600, 151936, 1e6, 1e-6, false, true},
    {"qwen3", "qwen3_30b_a3b", "", 48, 2048, 32, 4, 128, 768, 151936, 1e6, 1e-6, false, true, 128,
     8},
    {"qwen3", "qwen3_30b_a3b", "235B-A22B", 94, 4096, 64, 4, 128, 1536, 151936, 5e6, 1e-6, false,
     true, 128, 8}};

/// Its routers are set to balance nothing; losses that balance are not there.
void check_experts(const model::Config& m) {
  require_there(m.router == model::RouterKind::softmax && m.normalize_topk &&
                    m.routed_scale == 1.0 && m.expert_groups == 1,
                "routers unless their gates are a softmax of the chosen experts");
  require_there(m.shared_expert_ffn_size == 0 && m.first_dense_layers == 0,
                "a Qwen3 with a shared expert, or with first layers without experts");
  require_there(m.balance_loss == 0.0 && m.z_loss == 0.0, "model.balance_loss or z_loss above 0");
}

const Shipped& shipped_model(const model::Config& m) {
  const auto found = std::ranges::find_if(shipped, [&](const Shipped& s) {
    const int ffn_size = m.num_experts > 0 ? m.expert_ffn_size : m.ffn_size;
    return m.num_layers == s.num_layers && m.hidden_size == s.hidden_size &&
           m.num_heads == s.num_heads && m.kv_heads() == s.num_kv_heads &&
           m.head_dim() == s.head_dim && ffn_size == s.ffn_size && m.vocab_size == s.vocab_size &&
           m.num_experts == s.num_experts &&
           (m.num_experts == 0 || m.experts_per_token == s.experts_per_token) &&
           m.tied_head == s.tied_head && m.qk_norm == s.qk_norm && !m.qk_norm_joint;
  });
  require_there(m.mlp() == model::MlpKind::swiglu && m.norm() == model::NormKind::rms &&
                    m.rotary() && found != std::end(shipped) && !m.qkv_bias && m.window == 0,
                "a model of these sizes. It has Llama 3 (8B, 70B, 405B) and Qwen3 (0.6B, 1.7B, 4B, "
                "8B, 14B, 32B, 30B-A3B, 235B-A22B)");
  require_there(m.norm_eps == found->norm_eps,
                fmt::format("norm_eps = {}, it is {} there", m.norm_eps, found->norm_eps));
  require_there(m.padding == 0, "padded sequences (a cp and a tp that divide model.seq_len)");
  require_there(!m.latent(), "latent attention");
  require_there(m.rotary_dim() == m.head_dim(), "positions that turn a part of a head");
  require_there(m.query_scalar == 0.0 || m.query_scalar == m.head_dim(),
                "scores with a scale of their own");
  using Kind = model::RopeScaling::Kind;
  require_there(m.rope_scaling.kind == Kind::none || m.rope_scaling.kind == Kind::llama3,
                "linear or yarn scaling of rotary angles");
  require_there(m.rope_scaling.kind == Kind::none || !found->qk_norm,
                "scaling of a Qwen3's rotary angles");
  if (m.num_experts > 0) check_experts(m);
  return *found;
}

/// Lines that take away corrections of the choice, which its steps would move.
std::string routers(const model::Config& m) {
  if (m.num_experts == 0) return "";
  return "    for layer in config.model_spec.model.layers:\n"
         "        layer.moe.load_balance_coeff = None\n";
}

/// Lines that set the rotary angles, where they are not those of the shipped model.
std::string rotary(const Shipped& base, const model::Config& m) {
  const model::RopeScaling llama3{.kind = model::RopeScaling::Kind::llama3, .factor = 8.0};
  const model::RopeScaling& scaling = m.rope_scaling;
  const bool scaled = scaling.kind == llama3.kind;
  if (m.rope_theta == base.rope_theta &&
      (base.qk_norm || (scaled && scaling.factor == llama3.factor &&
                        scaling.low_freq_factor == llama3.low_freq_factor &&
                        scaling.high_freq_factor == llama3.high_freq_factor &&
                        scaling.original_seq_len == llama3.original_seq_len)))
    return "";
  std::string text = fmt::format(
      "    for layer in config.model_spec.model.layers:\n"
      "        rope = layer.attention.rope\n"
      "        rope.theta = {}\n"
      "        rope.scaling = \"{}\"\n",
      m.rope_theta, scaled ? "llama" : "none");
  if (scaled)
    text += fmt::format(
        "        rope.scaling_factor = {}\n"
        "        rope.low_freq_factor = {}\n"
        "        rope.high_freq_factor = {}\n"
        "        rope.original_max_position_embeddings = {}\n",
        scaling.factor, scaling.low_freq_factor, scaling.high_freq_factor,
        scaling.original_seq_len);
  return text;
}

/// Its flex attention gathers keys and values, and deals blocks of queries out by their work.
void check_shared_sequences(const plan::Stage& s, const model::Config& m) {
  if (s.cp == 1) return;
  require_there(m.num_experts == 0, "experts of ranks that share sequences (search.cp = [1])");
  require_there(s.gather_keys == 1,
                "an exchange of tokens for heads: gather_keys must be 1 if cp is above 1 "
                "(search.gather_keys = [1])");
  require_there(s.zero_level >= 2,
                "whole gradients if cp is above 1: it shards state over the ranks "
                "of cp (search.zero_levels = [2, 3])");
  require_there(s.dp % s.replicas == 0,
                "replicas over ranks of cp (search.shard_within_node = false)");
  require_there(
      m.seq_len % (context_block * s.cp) == 0,
      fmt::format("cp = {} for seq_len = {}: it gives each rank as many blocks of {} tokens", s.cp,
                  m.seq_len, context_block));
}

/// What all stages must have alike there.
void check_alike(const plan::Plan& plan, const model::Config& m) {
  const plan::Stage& first = plan.stages[0];
  const bool offloads = first.weight_offload_ratio > 0.0;
  for (const plan::Stage& s : plan.stages) {
    require_there(s.group.empty(), "stages on several groups of nodes");
    require_there(s.microbatch == first.microbatch && s.dp == first.dp && s.cp == first.cp &&
                      s.tp == first.tp,
                  "stages with different microbatch, dp, cp or tp (search.unequal_stages = false)");
    check_shared_sequences(s, m);
    require_there(s.mlp_tiles == 1, "MLP in tiles of tokens (search.mlp_tiles = [1])");
    require_there(s.ep == first.ep, "stages with different ep (search.unequal_stages = false)");
    require_there(s.expert_data_ranks() == 1 || s.dispatch_tokens == 1,
                  "ep above tp with dispatch_tokens = 0 (search.dispatch_tokens = [1])");
    require_there(s.expert_data_ranks() == 1 || s.zero_level >= 2,
                  "ep above tp without sharded weights (search.zero_levels = [2, 3])");
    require_there(s.replicas == first.replicas,
                  "stages with different replicas (search.shard_within_node = false)");
    require_there(s.zero_level == first.zero_level,
                  "stages with different zero_level (one of search.zero_levels)");
    require_there(
        (s.ckpt_layers > 0) == (first.ckpt_layers > 0) &&
            (s.ckpt_layers == 0 || s.ckpt_layers == s.layers),
        "full_recompute_layers between none and all layers (search.full_recompute = false)");
    const double whole = offloads ? 1.0 : 0.0;
    require_there(s.weight_offload_ratio == whole && s.grad_offload_ratio == whole &&
                      s.optim_offload_ratio == whole,
                  "partial offload: it offloads all of weights, gradients and optimizer state, or "
                  "nothing (search.weight_offload, grad_offload and optim_offload = [0.0])");
    require_there(s.act_offload_ratio == 0.0,
                  "act_offload_ratio above 0 (search.act_offload = [0.0])");
    require_there(!plan::uses_disk(s), "state on disk (cluster.disk_gib = 0)");
  }
  require_there(plan.order.is_1f1b(),
                plan::order_text(plan) + " (search.trainer = \"torchtitan\")");
  require_there(plan.num_stages() == 1 || plan.order.run_ahead == 1,
                "run_ahead = 2 (search.run_ahead = [1])");
  require_there(first.dp == 1 || first.zero_level != 1,
                "zero_level 1 (search.zero_levels = [0, 2, 3])");
  require_there(!offloads || (first.data_ranks() > 1 && first.zero_level >= 2),
                "offloaded state that is not sharded");
}

std::string bool_of(bool value) { return value ? "True" : "False"; }

/// The modules of each stage by name.
std::string stage_modules(const plan::Plan& plan) {
  std::string text = "[\n";
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const plan::Stage& stage = plan.stages[i];
    text += fmt::format("        {}[f\"layers.{{i}}\" for i in range({}, {})]{},\n",
                        i == 0 ? "[\"tok_embeddings\"] + " : "", stage.first_layer,
                        stage.first_layer + stage.layers,
                        i + 1 == plan.stages.size() ? " + [\"norm\", \"lm_head\"]" : "");
  }
  return text + "    ]";
}

std::string parallelism(const plan::Plan& plan) {
  const plan::Stage& stage = plan.stages[0];
  const bool sharded = stage.data_ranks() > 1 && stage.zero_level >= 2;
  std::string text = fmt::format(
      "    parallelism = config.parallelism\n"
      "    parallelism.data_parallel_replicate_degree = {}\n"
      "    parallelism.data_parallel_shard_degree = {}\n"
      "    parallelism.fsdp_reshard_after_forward = \"{}\"\n"
      "    parallelism.tensor_parallel_degree = {}\n"
      "    parallelism.enable_sequence_parallel = True\n"
      "    parallelism.pipeline_parallel_degree = {}\n",
      sharded ? stage.replicas : stage.dp, sharded ? stage.dp / stage.replicas : 1,
      stage.zero_level == 3 ? "always" : "never", stage.tp, plan.num_stages());
  if (stage.cp > 1)
    text += fmt::format(
        "    parallelism.context_parallel_degree = {}\n"
        "    parallelism.context_parallel_load_balancer = \"ptrr\"\n",
        stage.cp);
  if (stage.ep > 1) text += fmt::format("    parallelism.expert_parallel_degree = {}\n", stage.ep);
  if (plan.num_stages() > 1)
    text += fmt::format(
        "    parallelism.pipeline_parallel_schedule = \"1F1B\"\n"
        "    parallelism.num_pp_microbatches = {}\n"
        "    parallelism.module_fqns_per_model_part = {}\n",
        plan.microbatches, stage_modules(plan));
  return text;
}

std::string training(const deck::Deck& deck, const model::Config& model, const plan::Plan& plan) {
  const deck::TrainingKeys& keys = deck.training;
  const plan::Stage& stage = plan.stages[0];
  require_there(
      model.precision == model::Precision::bf16 || model.precision == model::Precision::fp32,
      fmt::format("training.precision = \"{}\"", model::name(model.precision)));
  require_there(keys.epochs == 0.0, "training.epochs: say steps or tokens");
  require_there(keys.optimizer.groups.empty(), "training.optimizer.groups");
  require_there(keys.adapter.rank == 0, "training.adapter");
  require_there(keys.preference.beta == 0.0, "training.preference");
  const bool offloads = stage.weight_offload_ratio > 0.0;
  // Neither stages nor waits for the host go into its CUDA graphs.
  const bool no_graphs = offloads || plan.num_stages() > 1;
  const std::int64_t batch_tokens = std::int64_t{plan.global_batch} * model.seq_len;
  const std::int64_t steps =
      keys.steps > 0 ? keys.steps : std::llround(std::ceil(keys.tokens / double(batch_tokens)));
  return fmt::format(
      "    training = config.training\n"
      "    training.max_context_length = {}\n"
      "    training.num_tokens_per_microbatch_per_dp_rank = {}\n"
      "    training.num_tokens_per_train_step = {}\n"
      "    training.steps = {}\n"
      "    training.max_norm = {}\n"
      "    training.enable_cpu_offload = {}\n"
      "    training.disable_cuda_graphs = {}\n"
      "    training.dtype = \"float32\"\n"
      "    training.mixed_precision_param = \"{}\"\n"
      "    config.activation_checkpoint = {}\n"
      "    config.debug.seed = {}\n",
      model.seq_len, std::int64_t{stage.microbatch} * model.seq_len, batch_tokens, steps,
      keys.optimizer.clip_norm, bool_of(offloads), bool_of(no_graphs),
      model.precision == model::Precision::bf16 ? "bfloat16" : "float32",
      stage.ckpt_layers > 0 ? "FullAC.Config()" : "None", keys.seed);
}

std::string optimizer(const deck::OptimizerKeys& keys) {
  require_there(keys.name == "adamw", fmt::format("training.optimizer.name = \"{}\"", keys.name));
  require_there(keys.moments == "fp32", "training.optimizer.moments");
  require_there(keys.clip_norm > 0.0, "training.optimizer.clip_norm = 0");
  require_there(keys.schedule == "cosine" || keys.schedule == "linear",
                fmt::format("training.optimizer.schedule = \"{}\"", keys.schedule));
  return fmt::format(
      "    config.optimizer = default_adamw(lr={}, betas=({}, {}), eps={}, weight_decay={})\n"
      "    config.lr_scheduler = LRSchedulersContainer.Config(\n"
      "        warmup_steps={}, decay_type=\"{}\", min_lr_factor={}\n"
      "    )\n",
      keys.lr, keys.beta1, keys.beta2, keys.eps, keys.weight_decay, keys.warmup_steps,
      keys.schedule, keys.min_lr_ratio);
}

}  // namespace

std::string torchtitan_module(const deck::Deck& deck, const model::Config& model,
                              const plan::Plan& plan) {
  check_alike(plan, model);
  const Shipped& base = shipped_model(model);
  require_there(!base.tied_head || plan.num_stages() == 1,
                "several stages of a model whose head is the token table (search.stages = [1])");
  const bool other_model = *base.flavor != '\0';
  return fmt::format(
             "\"\"\"A plan of Brume for {}, on {} devices: MODULE=(this file's) CONFIG=plan.\n\n"
             "Data, tokenizer and checkpoints are those of {}. Weight decay is for all parameters\n"
             "there, for all but norms in the plan.\n\"\"\"\n\n"
             "from torchtitan.components.optimizer import default_adamw, LRSchedulersContainer\n"
             "{}"
             "{}"
             "from torchtitan.models.{}.config_registry import {}\n\n\n"
             "def plan():\n"
             "    config = {}()\n"
             "{}",
             torchtitan_version, plan.devices(), base.function,
             plan.stages[0].ckpt_layers > 0
                 ? "from torchtitan.distributed.activation_checkpoint import FullAC\n"
                 : "",
             other_model
                 ? fmt::format("from torchtitan.models.{} import model_registry\n", base.folder)
                 : "",
             base.folder, base.function, base.function,
             other_model
                 ? fmt::format("    config.model_spec = model_registry(\"{}\")\n", base.flavor)
                 : "") +
         parallelism(plan) + training(deck, model, plan) + optimizer(deck.training.optimizer) +
         rotary(base, model) + routers(model) + "    return config\n";
}

}  // namespace brume::interop
