/// @file Parameters of a layer's adapter.
#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/error.hpp"
#include "block_parameters.hpp"

namespace brume::model {

std::int64_t query_inputs(const Config& m) {
  return m.q_lora_rank > 0 ? m.q_lora_rank : m.hidden_size;
}

std::int64_t still_and_values(const Config& m) {
  return std::int64_t{m.num_heads} * (m.still_dim() + m.v_head_dim());
}

namespace {

/// Both factors of a target's adapter. tp cuts them as the target's weight; the factor that
/// it leaves whole has partial gradients.
std::array<Parameter, 2> adapter_factors(const Config& m, const Adapter::Target& target) {
  const std::int64_t q = m.attention_size(), kv = std::int64_t{m.kv_heads()} * m.head_dim();
  const std::int64_t rank = target.rank, hidden = m.hidden_size, ffn = m.ffn_size;
  const auto factors = [&](std::vector<std::int64_t> out, std::int64_t in) {
    out.push_back(rank);
    return std::array{
        Parameter{.id = {target.module, Part::lora_a},
                  .shape = {rank, in},
                  .decays = true,
                  .init = Init::uniform,
                  .std = 1.0 / std::sqrt(3.0 * double(in))},
        Parameter{.id = {target.module, Part::lora_b}, .shape = std::move(out), .decays = true}};
  };
  const auto cut_outputs_of = [&](std::int64_t in, std::vector<std::int64_t> out, int split_dim,
                                  int split_heads) {
    auto both = factors(std::move(out), in);
    both[0].tp_partial = true;
    both[1].split_dim = split_dim;
    both[1].split_heads = split_heads;
    return both;
  };
  const auto cut_outputs = [&](std::vector<std::int64_t> out, int split_dim, int split_heads) {
    return cut_outputs_of(hidden, std::move(out), split_dim, split_heads);
  };
  const auto cut_inputs = [&](std::int64_t in) {
    auto both = factors({hidden}, in);
    both[0].split_dim = 1;
    both[1].tp_partial = true;
    return both;
  };
  // Experts are whole where they have factors.
  const auto of_experts = [&](std::vector<std::int64_t> out, std::int64_t in) {
    auto both = factors(std::move(out), in);
    for (Parameter& one : both) {
      one.shape.insert(one.shape.begin(), m.num_experts);
      one.split_dim = one.expert_dim = 0;
    }
    return both;
  };
  const int key_heads = q == kv ? 0 : m.kv_heads();
  switch (target.module) {
    case Module::qkv: return cut_outputs({3, q}, 1, 0);
    case Module::q: return cut_outputs_of(query_inputs(m), {q}, 0, 0);
    case Module::kv_up: return cut_outputs_of(m.kv_lora_rank, {still_and_values(m)}, 0, 0);
    case Module::q_down: {
      auto both = factors({m.q_lora_rank}, hidden);
      both[0].tp_partial = both[1].tp_partial = true;
      return both;
    }
    case Module::kv: return cut_outputs({2, kv}, 1, key_heads);
    case Module::k:
    case Module::v: return cut_outputs({kv}, 0, key_heads);
    case Module::attention_out: return cut_inputs(m.value_size());
    case Module::mlp_in:
    case Module::mlp_gate:
    case Module::mlp_up: return cut_outputs({ffn}, 0, 0);
    case Module::mlp_out: return cut_inputs(ffn);
    case Module::shared_gate:
    case Module::shared_up: {
      auto both = cut_outputs({m.shared_expert_ffn_size}, 0, 0);
      both[1].expert_dim = 0;
      return both;
    }
    case Module::shared_out: {
      auto both = cut_inputs(m.shared_expert_ffn_size);
      both[0].expert_dim = 1;
      return both;
    }
    case Module::experts_in: return of_experts({2, m.expert_ffn_size}, hidden);
    case Module::experts_out: return of_experts({hidden}, m.expert_ffn_size);
    default: break;
  }
  throw Error(Failure::bug, "'{}' has no adapter", name({target.module}));
}

/// Whether a module is in layers with experts only, or in others only.
bool is_of_experts_layer(Module module) {
  return module >= Module::router && module <= Module::shared_expert_gate;
}
bool is_of_mlp(Module module) { return module >= Module::mlp_in && module <= Module::mlp_out; }

}  // namespace

std::vector<Parameter> adapter_parameters(const Config& m, int layer, bool has_experts) {
  std::vector<Parameter> all;
  for (const Adapter::Target& target : m.adapter.targets)
    if (!(has_experts ? is_of_mlp(target.module) : is_of_experts_layer(target.module)))
      std::ranges::move(adapter_factors(m, target), std::back_inserter(all));
  for (Parameter& one : all) one.frozen = !m.adapter.is_in(layer);
  return all;
}

}  // namespace brume::model
