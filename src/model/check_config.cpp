/// @file Checks that sizes of a model fit each other and its family.
#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "base/error.hpp"
#include "config_parts.hpp"

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

void check_heads(const Config& m) {
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
}

void check_layers(const Config& m) {
  needs(!m.qk_norm || m.family->qk_norms, "qk_norm must be false for {}", m.family->name);
  needs(m.qk_norm || !m.qk_norm_joint, "qk_norm_joint needs qk_norm");
  needs(m.window == 0 || m.family->windows, "window must be 0 for {}", m.family->name);
  needs(m.window > 0 || (m.windows.empty() && m.window_rope_theta == 0.0),
        "layer_kinds and window_rope_theta need a window");
  needs(m.layer_norms >= m.family->layer_norms, "layer_norms must be 2 for {}, found {}",
        m.family->name, m.layer_norms);
  needs(m.family->caps || (m.attention_cap == 0.0 && m.logits_cap == 0.0),
        "attention_cap and logits_cap must be 0 for {}", m.family->name);
}

void check_experts(const Config& m) {
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
}

void check_biases(const Config& m) {
  needs(!m.gated() || m.family->biased || !m.linear_bias, "linear_bias must be false for {}",
        m.family->name);
  needs(m.shared_expert_ffn_size == 0 || !m.linear_bias,
        "shared_expert_ffn_size must be 0 for {}, whose linear layers have biases", m.family->name);
  needs(m.mlp() != MlpKind::gelu_tanh || m.linear_bias, "linear_bias must be true for {}",
        m.family->name);
}

void check_rope(const Config& m) {
  needs(m.rope_scaling.kind != RopeScaling::Kind::llama3 ||
            m.rope_scaling.low_freq_factor < m.rope_scaling.high_freq_factor,
        "rope_scaling.low_freq_factor = {} must be below high_freq_factor = {}",
        m.rope_scaling.low_freq_factor, m.rope_scaling.high_freq_factor);
  needs(m.rope_scaling.kind != RopeScaling::Kind::yarn ||
            (m.rope_scaling.beta_slow <= m.rope_scaling.beta_fast && m.rope_theta > 1.0),
        "rope_scaling.beta_slow = {} must be at most beta_fast = {}, and rope_theta above 1",
        m.rope_scaling.beta_slow, m.rope_scaling.beta_fast);
}

}  // namespace

void check_config(const Config& m) {
  check_heads(m);
  check_layers(m);
  check_experts(m);
  check_biases(m);
  check_rope(m);
}

}  // namespace brume::model
