/// @file Sizes of a model: from deck keys, as text, and what follows from them.
#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <numbers>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "model/model.hpp"
#include "model/storage.hpp"

namespace brume::model {
namespace {

template <typename... Args>
void needs(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds)
    throw Error(Failure::input, "model: {}", fmt::format(format, std::forward<Args>(args)...));
}

void check_router(const Config& m) {
  const bool sigmoid = m.router == RouterKind::sigmoid;
  needs(m.num_experts > 0 || (!sigmoid && m.routed_scale == 1.0 && m.expert_groups == 1),
        "router = \"sigmoid\", routed_scale and expert_groups need num_experts");
  needs(sigmoid || m.balance_rate == 0.0, "balance = \"bias\" needs router = \"sigmoid\"");
  if (m.expert_groups == 1) {
    needs(m.groups_per_token == 1, "groups_per_token = {} must be at most expert_groups = 1",
          m.groups_per_token);
    return;
  }
  const int least = sigmoid ? 2 : 1;  // scores that are added up
  needs(m.num_experts % m.expert_groups == 0 && m.num_experts >= least * m.expert_groups,
        "expert_groups = {} must divide num_experts = {} into groups of at least {}",
        m.expert_groups, m.num_experts, least);
  const int chosen = m.groups_per_token * (m.num_experts / m.expert_groups);
  needs(m.groups_per_token <= m.expert_groups && m.experts_per_token <= chosen,
        "groups_per_token = {} must be at most expert_groups = {}, and have at least "
        "experts_per_token = {} experts, found {}",
        m.groups_per_token, m.expert_groups, m.experts_per_token, chosen);
}

void check(const Config& m) {
  constexpr std::int64_t widest = 1 << 22;  // so that products of a few sizes fit 64 bits
  const std::int64_t attention_size =
      m.head_size > 0 ? std::int64_t{m.num_heads} * m.head_size : m.hidden_size;
  needs(attention_size <= widest, "num_heads x head_dim = {} x {} must be at most {}", m.num_heads,
        m.head_size, widest);
  needs(m.head_size > 0 || m.hidden_size % m.num_heads == 0,
        "num_heads = {} must divide hidden_size = {} unless head_dim is given", m.num_heads,
        m.hidden_size);
  needs(m.num_heads % m.kv_heads() == 0, "num_kv_heads = {} must divide num_heads = {}",
        m.kv_heads(), m.num_heads);
  needs(!m.rotary() || m.rotary_dim() % 2 == 0,
        "rotary positions turn pairs of features: {} must be even, found {}",
        m.rotary_size > 0 ? "rotary_dim" : "head_dim", m.rotary_dim());
  needs(m.rotary() || m.rotary_size == 0, "rotary_dim must be 0 for {}", m.family->name);
  needs(m.rotary_dim() <= m.head_dim(), "rotary_dim = {} must be at most head_dim = {}",
        m.rotary_dim(), m.head_dim());
  needs(!m.latent() || m.family->latent, "kv_lora_rank must be 0 for {}", m.family->name);
  needs(m.latent() || (m.q_lora_rank == 0 && m.v_head_size == 0),
        "q_lora_rank and v_head_dim need kv_lora_rank");
  needs(!m.latent() || (m.head_size > 0 && m.rotary_size > 0 && m.rotary_size < m.head_size),
        "with kv_lora_rank, rotary_dim = {} must be above 0 and below head_dim = {}", m.rotary_size,
        m.head_size);
  needs(m.v_head_dim() <= m.head_dim(), "v_head_dim = {} must be at most head_dim = {}",
        m.v_head_dim(), m.head_dim());
  needs(!m.latent() || (m.kv_heads() == m.num_heads && !m.qkv_bias && !m.qk_norm),
        "with kv_lora_rank, num_kv_heads must be num_heads, and qkv_bias and qk_norm false");
  needs(!m.qk_norm || m.family->qk_norms, "qk_norm must be false for {}", m.family->name);
  needs(m.qk_norm || !m.qk_norm_joint, "qk_norm_joint needs qk_norm");
  needs(m.window == 0 || m.family->windows, "window must be 0 for {}", m.family->name);
  needs(m.window > 0 || (m.windows.empty() && m.window_rope_theta == 0.0),
        "layer_kinds and window_rope_theta need a window");
  needs(m.layer_norms >= m.family->layer_norms, "layer_norms must be 2 for {}, found {}",
        m.family->name, m.layer_norms);
  needs(m.family->caps || (m.attention_cap == 0.0 && m.logits_cap == 0.0),
        "attention_cap and logits_cap must be 0 for {}", m.family->name);
  needs(m.num_experts == 0 || m.family->experts, "num_experts must be 0 for {}", m.family->name);
  needs(m.num_experts == 0 || m.experts_per_token <= m.num_experts,
        "experts_per_token = {} must be at most num_experts = {}", m.experts_per_token,
        m.num_experts);
  check_router(m);
  needs(m.first_dense_layers == 0 || m.first_dense_layers < m.num_layers,
        "first_dense_layers = {} must be below num_layers = {}", m.first_dense_layers,
        m.num_layers);
  needs(m.num_experts > 0 || m.first_dense_layers == 0, "first_dense_layers needs num_experts");
  needs(m.num_experts > 0 || m.shared_expert_ffn_size == 0,
        "shared_expert_ffn_size needs num_experts");
  needs(m.shared_expert_ffn_size > 0 || !m.shared_expert_gate,
        "shared_expert_gate needs shared_expert_ffn_size");
  needs(m.num_experts > 0 || (m.balance_loss == 0.0 && m.z_loss == 0.0),
        "balance_loss and z_loss need num_experts");
  needs(m.num_experts == 0 || m.precision != Precision::fp8,
        "experts do not run with training.precision = \"fp8\": say bf16");
  needs(m.first_dense_layers == 0 || !m.family->only_experts, "first_dense_layers must be 0 for {}",
        m.family->name);
  needs(m.num_experts > 0 || !m.family->only_experts, "num_experts must be above 0 for {}",
        m.family->name);
  needs(!m.gated() || m.family->biased || !m.linear_bias, "linear_bias must be false for {}",
        m.family->name);
  needs(m.shared_expert_ffn_size == 0 || !m.linear_bias,
        "shared_expert_ffn_size must be 0 for {}, whose linear layers have biases", m.family->name);
  needs(m.mlp() != MlpKind::gelu_tanh || m.linear_bias, "linear_bias must be true for {}",
        m.family->name);
  needs(m.rope_scaling.kind != RopeScaling::Kind::llama3 ||
            m.rope_scaling.low_freq_factor < m.rope_scaling.high_freq_factor,
        "rope_scaling.low_freq_factor = {} must be below high_freq_factor = {}",
        m.rope_scaling.low_freq_factor, m.rope_scaling.high_freq_factor);
  needs(m.rope_scaling.kind != RopeScaling::Kind::yarn ||
            (m.rope_scaling.beta_slow <= m.rope_scaling.beta_fast && m.rope_theta > 1.0),
        "rope_scaling.beta_slow = {} must be at most beta_fast = {}, and rope_theta above 1",
        m.rope_scaling.beta_slow, m.rope_scaling.beta_fast);
}

std::vector<bool> windows(const std::vector<std::string>& names) {
  std::vector<bool> windows;
  for (const std::string& name : names) windows.push_back(name == "window");
  return windows;
}

/// Whether the first group that fits a parameter freezes it.
bool is_frozen(const std::vector<deck::ParameterGroupKeys>& groups, const std::string& name) {
  const auto group = std::ranges::find_if(
      groups, [&](const deck::ParameterGroupKeys& one) { return fits(one.pattern, name); });
  return group != groups.end() && group->frozen;
}

Quantization quantization(const std::string& name) {
  for (const Quantization one : {Quantization::int8, Quantization::nf4})
    if (name == brume::name(one)) return one;
  return Quantization::none;
}

/// The modules that some pattern fits. @throws Error(input) if a pattern fits none
/// @param noun  of all modules, for the message
std::vector<Module> chosen(const std::vector<std::string>& patterns, const std::vector<Module>& all,
                           const char* key, const char* noun) {
  std::set<Module> found;
  for (const std::string& pattern : patterns) {
    std::vector<Module> fitting;
    std::ranges::copy_if(all, std::back_inserter(fitting),
                         [&](Module one) { return fits(pattern, module_name(one)); });
    found.insert(fitting.begin(), fitting.end());
    if (!fitting.empty()) continue;
    std::vector<std::string> names;
    std::ranges::transform(all, std::back_inserter(names), module_name);
    throw Error(Failure::input, "training.adapter.{}: \"{}\" fits none of this model's {}: {}", key,
                pattern, noun, fmt::join(names, ", "));
  }
  std::vector<Module> in_order;
  std::ranges::copy_if(all, std::back_inserter(in_order),
                       [&](Module one) { return found.contains(one); });
  return in_order;
}

Adapter adapter(const deck::AdapterKeys& keys, const Config& config) {
  if (keys.rank == 0) {
    require(keys.alpha == 0.0 && keys.targets.empty() && keys.modules_to_save.empty() &&
                keys.groups.empty() && keys.layers.empty(),
            Failure::input, "training.adapter: rank must be given, at least 1");
    return {};
  }
  const std::vector<Module> linear = adapter_targets(config), experts = expert_targets(config);
  std::vector<Module> all = linear;
  all.insert(all.end(), experts.begin(), experts.end());
  std::vector<std::string> patterns;
  for (const std::string& pattern : keys.targets)
    if (pattern == "all-linear")
      std::ranges::transform(linear, std::back_inserter(patterns), module_name);
    else
      patterns.push_back(pattern);
  const std::vector<Module> targets =
      patterns.empty() ? linear : chosen(patterns, all, "targets", "linear layers");
  for (const deck::AdapterGroupKeys& group : keys.groups)
    chosen({group.pattern}, targets, "groups", "targets");
  std::vector<int> layers = keys.layers;
  std::ranges::sort(layers);
  for (std::size_t i = 0; i < layers.size(); ++i)
    require(layers[i] < config.num_layers && (i == 0 || layers[i] > layers[i - 1]), Failure::input,
            "training.adapter.layers: found {}, expected different numbers from 0 to {}", layers[i],
            config.num_layers - 1);
  Adapter adapter{.rslora = keys.scaling == "rslora",
                  .layers = layers,
                  .saved = chosen(keys.modules_to_save, modules_to_save(config), "modules_to_save",
                                  "tables and norms")};
  for (const Module module : targets) {
    const auto group = std::ranges::find_if(keys.groups, [&](const deck::AdapterGroupKeys& one) {
      return fits(one.pattern, module_name(module));
    });
    const deck::AdapterGroupKeys own =
        group == keys.groups.end() ? deck::AdapterGroupKeys{} : *group;
    adapter.targets.push_back({.module = module,
                               .rank = own.rank > 0 ? own.rank : keys.rank,
                               .alpha = own.alpha > 0.0    ? own.alpha
                                        : keys.alpha > 0.0 ? keys.alpha
                                                           : keys.rank});
  }
  return adapter;
}

/// Freezes the parameters that groups freeze and, where there is an adapter, all but its own and
/// the modules that it saves.
/// @throws Error(input) where that is all
void freeze(Config& config, const std::vector<deck::ParameterGroupKeys>& groups) {
  const bool adapts = config.adapter.exists();
  if (!adapts && std::ranges::none_of(groups, &deck::ParameterGroupKeys::frozen)) return;
  const bool trains = freeze(config, [&](const Parameter& one) {
    return (adapts && !one.id.is_adapter() && !config.adapter.saves(one.id.module)) ||
           is_frozen(groups, one.name);
  });
  require(trains, Failure::input,
          "training.optimizer.groups: all parameters are frozen, so there is nothing to train");
}

RopeScaling rope_scaling(const deck::RopeScalingKeys& keys) {
  using Kind = RopeScaling::Kind;
  return {.kind = keys.kind == "linear"   ? Kind::linear
                  : keys.kind == "llama3" ? Kind::llama3
                  : keys.kind == "yarn"   ? Kind::yarn
                                          : Kind::none,
          .factor = keys.factor,
          .low_freq_factor = keys.low_freq_factor,
          .high_freq_factor = keys.high_freq_factor,
          .original_seq_len = keys.original_seq_len,
          .beta_fast = keys.beta_fast,
          .beta_slow = keys.beta_slow,
          .truncate = keys.truncate,
          .attention_factor = keys.attention_factor,
          .mscale = keys.mscale,
          .mscale_all_dim = keys.mscale_all_dim};
}

}  // namespace

bool fits(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

std::vector<Module> adapter_targets(const Config& m) {
  const families::TensorNames& files = m.family->tensors;
  const bool fused = !files.fused_qkv.empty() || files.of_layer.at("attention.qkv").size() == 1;
  std::vector<Module> targets;
  if (m.latent() && m.q_lora_rank > 0)
    targets = {Module::q_down, Module::q, Module::kv_up};
  else if (m.latent())
    targets = {Module::q, Module::kv_up};
  else if (!fused)
    targets = {Module::q, Module::k, Module::v};
  else if (m.kv_heads() == m.num_heads)
    targets = {Module::qkv};
  else
    targets = {Module::q, Module::kv};
  targets.push_back(Module::attention_out);
  if (m.num_experts > 0) {
    if (m.shared_expert_ffn_size > 0)
      targets.insert(targets.end(), {Module::shared_gate, Module::shared_up, Module::shared_out});
    if (m.first_dense_layers == 0) return targets;
  }
  if (m.gated())
    targets.insert(targets.end(), {Module::mlp_gate, Module::mlp_up});
  else
    targets.push_back(Module::mlp_in);
  targets.push_back(Module::mlp_out);
  return targets;
}

std::vector<Module> expert_targets(const Config& m) {
  // PEFT has no factors for experts with biases.
  if (m.num_experts == 0 || m.linear_bias) return {};
  return {Module::experts_in, Module::experts_out};
}

std::vector<Module> modules_to_save(const Config& config) {
  std::vector<Module> modules;
  for (const Block& block : blocks(config))
    for (const Parameter& one : block.parameters) {
      const Module module = one.id.module;
      const bool fits = block.kind != BlockKind::layer || name({module}).ends_with(".gain");
      if (fits && std::ranges::count(modules, module) == 0) modules.push_back(module);
    }
  return modules;
}

bool freeze(Config& config, const std::function<bool(const Parameter&)>& frozen) {
  int blocks_without = 0;
  std::vector<std::string> names;
  bool trains = false;
  for (const Block& block : blocks(config)) {
    std::vector<std::string> here;
    for (const Parameter& one : block.parameters) {
      const bool asked = frozen(one);
      if (asked || (one.frozen && !one.balanced)) here.push_back(one.name);
      trains = trains || !(asked || one.frozen);
    }
    if (trains)
      std::ranges::move(here, std::back_inserter(names));
    else
      ++blocks_without;
  }
  std::ranges::sort(names);
  config.frozen_blocks = blocks_without;
  config.frozen_parameters = std::move(names);
  return trains;
}

Config generating(Config config, const Generation& sizes) {
  config.moments = Moments::fp32;
  freeze(config, [](const Parameter&) { return true; });
  config.generation = sizes;
  config.isolated = true;
  config.document_share = 1.0;
  config.exchanges_normed = false;
  // Few tokens may all choose the experts of one rank.
  config.rank_load_factor = std::max(1, config.num_experts);
  return config;
}

bool Config::reads_documents(SegmentKind kind) const {
  return isolated && (attends(kind) || (kind == SegmentKind::embedding && !rotary()));
}

float Config::embedding_scale() const {
  if (!family->scaled_embedding) return 1.0f;
  const auto scale = float(std::sqrt(double(hidden_size)));  // rounded as weights are
  return with_storage(precision, [&]<class Storage>() { return float(Storage(scale)); });
}

bool Config::keeps_latents() const {
  return generates() && latent() && quantization == Quantization::none &&
         adapter.find(Module::kv_up) == nullptr;
}

float Config::score_scale() const {
  if (latent()) {
    const double scalar = query_scalar > 0.0 ? query_scalar : head_dim();
    return float(rope_scaling.latent_score_factor() / std::sqrt(scalar));
  }
  return query_scalar > 0.0 ? float(1.0 / std::sqrt(query_scalar))
                            : 1.0f / std::sqrt(float(head_dim()));
}

Config config(const deck::ModelKeys& keys, std::string_view precision) {
  require(keys.config.empty(), Failure::bug, "model: config = \"{}\" was not read", keys.config);
  const Family& family = families::family(keys.family);
  Config config{.family = &family,
                .num_layers = keys.num_layers,
                .hidden_size = keys.hidden_size,
                .num_heads = keys.num_heads,
                .num_kv_heads = keys.num_kv_heads,
                .head_size = keys.head_dim,
                .kv_lora_rank = keys.kv_lora_rank,
                .q_lora_rank = keys.q_lora_rank,
                .v_head_size = keys.v_head_dim,
                .ffn_size = keys.ffn_size == 0 ? 4 * keys.hidden_size : keys.ffn_size,
                .num_experts = keys.num_experts,
                .first_dense_layers = keys.first_dense_layers,
                .experts_per_token = keys.num_experts > 0 ? keys.experts_per_token : 0,
                .shared_expert_ffn_size = keys.shared_expert_ffn_size,
                .shared_expert_gate = keys.shared_expert_gate,
                .router = keys.router == "sigmoid" ? RouterKind::sigmoid : RouterKind::softmax,
                .normalize_topk = keys.normalize_topk,
                .routed_scale = keys.routed_scale,
                .expert_groups = keys.expert_groups,
                .groups_per_token = keys.groups_per_token,
                .balance_rate = keys.balance == "bias" ? keys.balance_rate : 0.0,
                .balance_loss = keys.balance_loss,
                .z_loss = keys.z_loss,
                .rank_load_factor = keys.rank_load_factor,
                .seq_len = keys.seq_len,
                .vocab_size = keys.vocab_size,
                .tied_head = keys.tied_head,
                .qkv_bias = keys.qkv_bias,
                .linear_bias = keys.linear_bias,
                .layer_norms = keys.layer_norms == 0 ? family.layer_norms : keys.layer_norms,
                .qk_norm = keys.qk_norm,
                .qk_norm_joint = keys.qk_norm_joint,
                .parallel_residual = keys.parallel_residual,
                .norm_eps = keys.norm_eps,
                .rope_theta = keys.rope_theta,
                .rotary_size = keys.rotary_dim,
                .rope_scaling = rope_scaling(keys.rope_scaling),
                .window = keys.window,
                .windows = windows(keys.layer_kinds),
                .window_rope_theta = keys.window_rope_theta,
                .query_scalar = keys.query_scalar,
                .attention_cap = keys.attention_cap,
                .logits_cap = keys.logits_cap,
                .init_std = keys.init_std,
                .isolated = keys.isolated,
                .pairs = keys.pairs,
                .precision = model::precision(precision),
                .quantization = quantization(keys.quantization),
                .optimizer = &optimizer(keys.optimizer),
                .moments = moments(keys.moments)};
  if (config.num_experts > 0)
    config.expert_ffn_size = keys.expert_ffn_size == 0 ? config.ffn_size : keys.expert_ffn_size;
  check(config);
  config.adapter = adapter(keys.adapter, config);
  freeze(config, keys.groups);
  return config;
}

const char* name(Precision precision) {
  switch (precision) {
    case Precision::fp32: return "fp32";
    case Precision::bf16: return "bf16";
    case Precision::fp16: return "fp16";
    case Precision::fp8: return "fp8";
  }
  return "";
}

Precision precision(std::string_view name) {
  for (const Precision one : {Precision::fp32, Precision::bf16, Precision::fp16, Precision::fp8})
    if (name == model::name(one)) return one;
  throw Error(Failure::input, "precision \"{}\" is none of fp32, bf16, fp16 and fp8", name);
}

std::string text(const Config& m) {
  std::string line = fmt::format(
      "{} layers={} hidden={} heads={} ffn={} seq={} vocab={} tied={} "
      "eps={}",
      m.family->name, m.num_layers, m.hidden_size, m.num_heads, m.inner_size(), m.seq_len,
      m.vocab_size, m.tied_head, m.norm_eps);
  std::string adapter_size;  // rank and scale of the last term
  // What every GPT had before there were choices goes without saying.
  if (m.num_heads * m.head_dim() != m.hidden_size)
    line += fmt::format(" head_dim={}", m.head_dim());
  if (m.kv_heads() != m.num_heads) line += fmt::format(" kv_heads={}", m.kv_heads());
  if (m.latent())
    line += fmt::format(" latent={}/{}/{}", m.kv_lora_rank, m.q_lora_rank, m.v_head_dim());
  if (m.rotary() || !m.qkv_bias)
    line += fmt::format(" qkv_bias={} linear_bias={}", m.qkv_bias, m.linear_bias);
  if (m.family->layer_norms == 1) line += fmt::format(" layer_norms={}", m.layer_norms);
  if (m.family->parallel == families::ParallelBlock::by_choice)
    line += fmt::format(" parallel={}", m.parallel());
  if (m.qk_norm) line += m.qk_norm_joint ? " qk_norm/joint" : " qk_norm";
  if (m.num_experts > 0)
    line += fmt::format(" experts={}/{}{}", m.num_experts, m.experts_per_token,
                        m.normalize_topk ? "" : "/all");
  const bool sigmoid = m.router == RouterKind::sigmoid;
  if (sigmoid || m.expert_groups > 1)
    line += fmt::format(" router={}/{}/{}", sigmoid ? "sigmoid" : "softmax", m.expert_groups,
                        m.groups_per_token);
  if (m.routed_scale != 1.0) line += fmt::format(" routed_scale={}", m.routed_scale);
  if (m.first_dense_layers > 0)
    line += fmt::format(" dense={}x{}", m.first_dense_layers, m.ffn_size);
  if (m.shared_expert_ffn_size > 0)
    line += fmt::format(" shared_expert={}{}", m.shared_expert_ffn_size,
                        m.shared_expert_gate ? "/gate" : "");
  if (m.query_scalar > 0.0 && m.query_scalar != m.head_dim())
    line += fmt::format(" query_scalar={}", m.query_scalar);
  if (m.attention_cap > 0.0 || m.logits_cap > 0.0)
    line += fmt::format(" caps={}/{}", m.attention_cap, m.logits_cap);
  for (const Adapter::Target& target : m.adapter.targets) {
    const auto size = fmt::format("{}/{}", target.rank, m.adapter.scale(target));
    if (size != adapter_size) line += (adapter_size.empty() ? " adapter=" : "/") + size;
    line += "/" + module_name(target.module);
    adapter_size = size;
  }
  if (!m.adapter.layers.empty())
    line += fmt::format(" adapter_layers={}", fmt::join(m.adapter.layers, "/"));
  if (m.quantization != Quantization::none)
    line += fmt::format(" quantization={}", brume::name(m.quantization));
  if (!m.rotary()) return line;
  if (m.rotary_dim() != m.head_dim()) line += fmt::format(" rotary_dim={}", m.rotary_dim());
  line += fmt::format(" rope_theta={}", m.rope_theta);
  if (m.windowed()) {
    line += fmt::format(" window={}/", m.window);
    for (const bool window : m.windows) line += window ? 'w' : 'f';
    if (m.window_rope_theta > 0.0) line += fmt::format("/{}", m.window_rope_theta);
  }
  const RopeScaling& scaling = m.rope_scaling;
  if (scaling.kind == RopeScaling::Kind::linear)
    line += fmt::format(" rope=linear/{}", scaling.factor);
  if (scaling.kind == RopeScaling::Kind::llama3)
    line += fmt::format(" rope=llama3/{}/{}/{}/{}", scaling.factor, scaling.low_freq_factor,
                        scaling.high_freq_factor, scaling.original_seq_len);
  if (scaling.kind == RopeScaling::Kind::yarn)
    line += fmt::format(" rope=yarn/{}/{}/{}/{}{}/{:.9g}", scaling.factor, scaling.beta_fast,
                        scaling.beta_slow, scaling.original_seq_len,
                        scaling.truncate ? "" : "/exact", scaling.magnitude());
  if (m.latent() && scaling.latent_score_factor() != 1.0)
    line += fmt::format("/scores/{:.9g}", scaling.latent_score_factor());
  return line;
}

std::string dequantize_kind(const Config& m) {
  return fmt::format("{}_{}", name(OperatorKind::dequantize), brume::name(m.quantization));
}

std::vector<std::pair<LayerKind, int>> layer_counts(const Config& config) {
  std::map<LayerKind, int> counts;
  for (int layer = 0; layer < config.num_layers; ++layer) ++counts[config.layer_kind(layer)];
  return {counts.begin(), counts.end()};
}

namespace {

double yarn_magnitude(double factor, double scale) {
  return 1.0 + 0.1 * scale * std::log(std::max(1.0, factor));
}

}  // namespace

double RopeScaling::magnitude() const {
  if (kind != Kind::yarn) return 1.0;
  if (attention_factor > 0.0) return attention_factor;
  return mscale > 0.0 && mscale_all_dim > 0.0
             ? yarn_magnitude(factor, mscale) / yarn_magnitude(factor, mscale_all_dim)
             : yarn_magnitude(factor, 1.0);
}

double RopeScaling::latent_score_factor() const {
  if (kind != Kind::yarn || mscale_all_dim == 0.0) return 1.0;
  const double magnitude = yarn_magnitude(factor, mscale_all_dim);
  return magnitude * magnitude;
}

namespace {

/// A windowed layer may have a base of its own, without scaling.
bool has_own_angles(const Config& m, LayerKind kind) {
  return kind.window && m.window_rope_theta > 0.0;
}

/// The share of each pair's frequency that yarn leaves alone: 1 up to the pair with beta_fast turns
/// in original_seq_len, 0 from that with beta_slow turns on.
std::vector<double> kept_by_yarn(const RopeScaling& scaling, double theta, int turned) {
  const auto pair_with = [&](double turns) {
    return turned * std::log(scaling.original_seq_len / (turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(theta));
  };
  double low = pair_with(scaling.beta_fast), high = pair_with(scaling.beta_slow);
  if (scaling.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, turned - 1.0);
  if (low == high) high += 0.001;
  std::vector<double> kept;
  for (int i = 0; i < turned / 2; ++i)
    kept.push_back(1.0 - std::clamp((i - low) / (high - low), 0.0, 1.0));
  return kept;
}

/// The same of llama3, by turns.
std::vector<double> kept_by_llama3(const RopeScaling& scaling, const std::vector<double>& plain) {
  std::vector<double> kept;
  for (const double frequency : plain) {
    const double turns = scaling.original_seq_len * frequency / (2.0 * std::numbers::pi);
    kept.push_back(std::clamp(
        (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor),
        0.0, 1.0));
  }
  return kept;
}

}  // namespace

double rope_magnitude(const Config& m, LayerKind kind) {
  return has_own_angles(m, kind) ? 1.0 : m.rope_scaling.magnitude();
}

std::vector<double> rope_frequencies(const Config& m, LayerKind kind) {
  const bool own = has_own_angles(m, kind);
  const RopeScaling scaling = own ? RopeScaling{} : m.rope_scaling;
  const double theta = own ? m.window_rope_theta : m.rope_theta;
  std::vector<double> frequencies;
  for (int i = 0; i < m.rotary_dim() / 2; ++i)
    frequencies.push_back(std::pow(theta, -2.0 * i / m.rotary_dim()));
  std::vector<double> kept(frequencies.size(), 0.0);  // share left alone
  switch (scaling.kind) {
    case RopeScaling::Kind::none: return frequencies;
    case RopeScaling::Kind::linear: break;
    case RopeScaling::Kind::llama3: kept = kept_by_llama3(scaling, frequencies); break;
    case RopeScaling::Kind::yarn: kept = kept_by_yarn(scaling, theta, m.rotary_dim()); break;
  }
  for (std::size_t i = 0; i < kept.size(); ++i)
    frequencies[i] = kept[i] * frequencies[i] + (1.0 - kept[i]) * frequencies[i] / scaling.factor;
  return frequencies;
}

}  // namespace brume::model
