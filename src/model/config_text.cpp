/// @file Sizes of a model as text.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>

#include "model/config.hpp"

namespace brume::model {

namespace {

void add_attention(std::string& line, const Config& m) {
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
}

void add_experts(std::string& line, const Config& m) {
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
}

void add_scores(std::string& line, const Config& m) {
  if (m.query_scalar > 0.0 && m.query_scalar != m.head_dim())
    line += fmt::format(" query_scalar={}", m.query_scalar);
  if (m.attention_cap > 0.0 || m.logits_cap > 0.0)
    line += fmt::format(" caps={}/{}", m.attention_cap, m.logits_cap);
}

void add_adapter(std::string& line, const Config& m) {
  std::string adapter_size;  // rank and scale of the last term
  for (const Adapter::Target& target : m.adapter.targets) {
    const auto size = fmt::format("{}/{}", target.rank, m.adapter.scale(target));
    if (size != adapter_size) line += (adapter_size.empty() ? " adapter=" : "/") + size;
    line += "/" + module_name(target.module);
    adapter_size = size;
  }
  if (!m.adapter.layers.empty())
    line += fmt::format(" adapter_layers={}", fmt::join(m.adapter.layers, "/"));
}

void add_positions(std::string& line, const Config& m) {
  if (!m.rotary()) return;
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
}

}  // namespace

std::string text(const Config& m) {
  std::string line = fmt::format(
      "{} layers={} hidden={} heads={} ffn={} seq={} vocab={} tied={} "
      "eps={}",
      m.family->name, m.num_layers, m.hidden_size, m.num_heads, m.inner_size(), m.seq_len,
      m.vocab_size, m.tied_head, m.norm_eps);
  // A property that every GPT had before there were choices is left out.
  add_attention(line, m);
  add_experts(line, m);
  add_scores(line, m);
  add_adapter(line, m);
  if (m.quantization != Quantization::none)
    line += fmt::format(" quantization={}", brume::name(m.quantization));
  add_positions(line, m);
  return line;
}

}  // namespace brume::model
