/// @file Parameters of the embedding, of a layer and of the head.
#include <cmath>
#include <iterator>
#include <string>
#include <utility>

#include "block_parameters.hpp"

namespace brume::model {
namespace {

/// A table or weight that every tp rank holds, unless `split_dim` and `split_heads` are set.
Parameter matrix(Module module, std::vector<std::int64_t> shape, double std) {
  return {
      .id = {module}, .shape = std::move(shape), .decays = true, .init = Init::normal, .std = std};
}

/// Adds the parameters of a norm. Their gradients are parts, because each tp rank works on its own
/// columns of what the norm feeds.
Parameter gain(Module norm, const Config& m, int width) {
  return {.id = {norm},
          .shape = {width},
          .tp_partial = true,
          .init = m.gain_base() == 0.0f ? Init::ones : Init::zeros};
}

/// Features that a norm of queries or keys takes together.
int normed_size(const Config& m, Module norm) {
  if (!m.qk_norm_joint) return m.head_dim();
  return norm == Module::q_norm ? m.attention_size() : m.kv_heads() * m.head_dim();
}

void add_norm(std::vector<Parameter>& parameters, const Config& m, Module norm) {
  parameters.push_back(gain(norm, m, m.hidden_size));
  if (m.norm() == NormKind::layer)
    parameters.push_back({.id = {norm, Part::bias}, .shape = {m.hidden_size}, .tp_partial = true});
}

/// Weight [..., I] and, if it has one, bias [...] of a linear layer whose outputs tp cuts.
void add_cut(std::vector<Parameter>& parameters, Module module, bool bias,
             std::vector<std::int64_t> shape, int split_dim, int split_heads, double std) {
  Parameter weight = matrix(module, shape, std);
  weight.split_dim = split_dim;
  weight.split_heads = split_heads;
  parameters.push_back(std::move(weight));
  shape.pop_back();
  if (bias)
    parameters.push_back({.id = {module, Part::bias},
                          .shape = std::move(shape),
                          .split_dim = split_dim,
                          .split_heads = split_heads});
}

/// Standard deviation of weights that add to the residual stream: smaller, so that its variance
/// does not grow with depth.
double out_std(const Config& m) { return m.init_std / std::sqrt(2.0 * m.num_layers); }

/// Weight [C, I] of which tp cuts the inputs, and, if it has one, bias [C].
void add_out(std::vector<Parameter>& parameters, const Config& m, Module module, int inputs) {
  Parameter weight = matrix(module, {m.hidden_size, inputs}, out_std(m));
  weight.split_dim = 1;
  parameters.push_back(std::move(weight));
  if (m.linear_bias) parameters.push_back({.id = {module, Part::bias}, .shape = {m.hidden_size}});
}

/// q, k and v are a dimension of their own, so that tp cuts each of them by heads. Fewer key heads
/// are a tensor apart, right behind the norms: where tp does not divide them its gradient is
/// partial as theirs are.
void add_qkv(std::vector<Parameter>& p, const Config& m) {
  const std::int64_t q = m.attention_size(), kv = std::int64_t{m.kv_heads()} * m.head_dim();
  const std::int64_t hidden = m.hidden_size;
  if (m.latent()) {
    add_cut(p, Module::q, false, {q, query_inputs(m)}, 0, 0, m.init_std);
    return add_cut(p, Module::kv_up, false, {still_and_values(m), m.kv_lora_rank}, 0, 0,
                   m.init_std);
  }
  if (q == kv) return add_cut(p, Module::qkv, m.qkv_bias, {3, q, hidden}, 1, 0, m.init_std);
  add_cut(p, Module::kv, m.qkv_bias, {2, kv, hidden}, 1, m.kv_heads(), m.init_std);
  add_cut(p, Module::q, m.qkv_bias, {q, hidden}, 0, 0, m.init_std);
}

/// A matrix that every tp rank holds whole, with partial gradients: it feeds columns that tp cuts.
void add_whole(std::vector<Parameter>& p, const Config& m, Module module, std::int64_t rows) {
  p.push_back(matrix(module, {rows, m.hidden_size}, m.init_std));
  p.back().tp_partial = true;
}

/// The parameters of latent attention whose gradients are partial.
void add_latent(std::vector<Parameter>& p, const Config& m) {
  if (m.q_lora_rank > 0) {
    p.push_back(gain(Module::q_down_norm, m, m.q_lora_rank));
    add_whole(p, m, Module::q_down, m.q_lora_rank);
  }
  p.push_back(gain(Module::kv_down_norm, m, m.kv_lora_rank));
  add_whole(p, m, Module::kv_down, m.kv_lora_rank);
  add_whole(p, m, Module::k_turned, m.rotary_dim());
}

/// Weights [E, 2, I, C] and [E, C, I] of all experts, each of which tp cuts as an MLP, or ep leaves
/// whole, and biases [E, 2, I] and [E, C] if they have any. Ranks add their outputs, so each adds
/// its columns of the last bias.
void add_experts(std::vector<Parameter>& p, const Config& m) {
  const std::int64_t experts = m.num_experts, inner = m.expert_ffn_size, hidden = m.hidden_size;
  const std::size_t first = p.size();
  add_cut(p, Module::experts_in, m.linear_bias, {experts, 2, inner, hidden}, 2, 0, m.init_std);
  add_cut(p, Module::experts_out, false, {experts, hidden, inner}, 2, 0, out_std(m));
  if (m.linear_bias)
    p.push_back(
        {.id = {Module::experts_out, Part::bias}, .shape = {experts, hidden}, .split_dim = 1});
  for (std::size_t i = first; i < p.size(); ++i) p[i].expert_dim = 0;
}

/// Weights [2, F, C] and [C, F] of the expert that every token passes: all ranks that sum the
/// segment's output cut it, also those that have whole routed experts.
void add_shared_expert(std::vector<Parameter>& p, const Config& m) {
  const std::int64_t inner = m.shared_expert_ffn_size, hidden = m.hidden_size;
  if (inner == 0) return;
  add_cut(p, Module::shared_in, false, {2, inner, hidden}, 1, 0, m.init_std);
  p.back().expert_dim = 1;
  add_cut(p, Module::shared_out, false, {hidden, inner}, 1, 0, out_std(m));
  p.back().expert_dim = 1;
}

/// Adds all norms of a layer.
void add_norms(std::vector<Parameter>& p, const Config& m) {
  add_norm(p, m, Module::norm1);
  if (m.layer_norms == 2) add_norm(p, m, Module::norm2);
  if (m.post_norms())
    for (const Module norm : {Module::post_norm1, Module::post_norm2}) add_norm(p, m, norm);
  if (m.qk_norm)
    for (const Module norm : {Module::q_norm, Module::k_norm})
      p.push_back(gain(norm, m, normed_size(m, norm)));
}

/// Adds the router of a layer with experts, and the gate of its shared expert.
void add_router(std::vector<Parameter>& p, const Config& m) {
  // Each tp rank has its columns' part of the gates' gradients.
  add_whole(p, m, Module::router, m.num_experts);
  if (m.router == RouterKind::sigmoid)
    p.push_back({.id = {Module::router, Part::correction},
                 .shape = {m.num_experts},
                 .frozen = true,
                 .balanced = m.balance_rate > 0.0,
                 .in_fp32 = true});
  if (m.linear_bias)
    p.push_back({.id = {Module::router, Part::bias},
                 .shape = {m.num_experts},
                 .tp_partial = true,
                 .init = Init::normal,
                 .std = m.init_std});
  if (m.shared_expert_gate) add_whole(p, m, Module::shared_expert_gate, 1);
}

void add_mlp(std::vector<Parameter>& p, const Config& m) {
  if (m.gated())
    add_cut(p, Module::mlp_in, m.linear_bias, {2, m.ffn_size, m.hidden_size}, 1, 0, m.init_std);
  else
    add_cut(p, Module::mlp_in, m.linear_bias, {m.ffn_size, m.hidden_size}, 0, 0, m.init_std);
  add_out(p, m, Module::mlp_out, m.ffn_size);
}

}  // namespace

Parameter token_table(Module module, const Config& m) {
  Parameter table = matrix(module, {m.vocab_size, m.hidden_size}, m.init_std);
  table.split_dim = 0;
  return table;
}

Block embedding_block(const Config& m) {
  Block block{.kind = BlockKind::embedding, .name = "embedding", .parameters = {}};
  block.parameters.push_back(token_table(Module::token, m));
  if (!m.rotary())
    block.parameters.push_back(matrix(Module::position, {m.seq_len, m.hidden_size}, m.init_std));
  return block;
}

Block layer_block(const Config& m, int layer) {
  Block block{.kind = BlockKind::layer,
              .layer = layer,
              .name = "layers." + std::to_string(layer),
              .parameters = {}};
  std::vector<Parameter>& p = block.parameters;
  const bool has_experts = m.num_experts > 0 && !m.layer_kind(layer).dense;
  add_norms(p, m);
  if (has_experts) add_router(p, m);
  if (m.latent()) add_latent(p, m);
  // Gradients that are partial stay together: always, then for some tp, then never.
  const std::vector<Parameter> adapters = adapter_parameters(m, layer, has_experts);
  const auto add_adapters = [&](const auto& wanted) {
    std::ranges::copy_if(adapters, std::back_inserter(p), wanted);
  };
  add_adapters([](const Parameter& one) { return one.tp_partial; });
  add_adapters([](const Parameter& one) { return one.split_heads > 0; });
  add_qkv(p, m);
  if (m.sinks())
    p.push_back({.id = {Module::sinks},
                 .shape = {m.num_heads},
                 .split_dim = 0,
                 .init = Init::normal,
                 .std = m.init_std});
  add_out(p, m, Module::attention_out, m.value_size());
  if (has_experts) {
    add_experts(p, m);
    add_shared_expert(p, m);
  } else {
    add_mlp(p, m);
  }
  add_adapters([](const Parameter& one) { return !one.tp_partial && one.split_heads == 0; });
  return block;
}

Block head_block(const Config& m) {
  Block block{.kind = BlockKind::head, .name = "head", .parameters = {}};
  add_norm(block.parameters, m, Module::head_norm);
  if (!m.tied_head) block.parameters.push_back(token_table(Module::head, m));
  return block;
}

}  // namespace brume::model
