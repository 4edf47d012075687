/// @file Blocks, their parameters, and how these lie in flat buffers.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <numbers>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.hpp"
#include "base/mix.hpp"
#include "base/text.hpp"
#include "heads.hpp"
#include "model/model.hpp"

namespace brume::model {
namespace {

/// A table or weight that every tp rank holds, unless `split_dim` and `split_heads` are set.
Parameter matrix(Module module, std::vector<std::int64_t> shape, double std) {
  return {
      .id = {module}, .shape = std::move(shape), .decays = true, .init = Init::normal, .std = std};
}

/// [V, C], a row a token; tp cuts the vocabulary.
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

std::int64_t query_inputs(const Config& m) {
  return m.q_lora_rank > 0 ? m.q_lora_rank : m.hidden_size;
}

/// Rows of latent attention's kv_up.
std::int64_t still_and_values(const Config& m) {
  return std::int64_t{m.num_heads} * (m.still_dim() + m.v_head_dim());
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

/// Adapters' parameters of a layer in the order of targets. All layers of a kind have them, because
/// a kind of segments has one list of operators.
std::vector<Parameter> adapter_parameters(const Config& m, int layer, bool has_experts) {
  std::vector<Parameter> all;
  for (const Adapter::Target& target : m.adapter.targets)
    if (!(has_experts ? is_of_mlp(target.module) : is_of_experts_layer(target.module)))
      std::ranges::move(adapter_factors(m, target), std::back_inserter(all));
  for (Parameter& one : all) one.frozen = !m.adapter.is_in(layer);
  return all;
}

Block layer_block(const Config& m, int layer) {
  Block block{.kind = BlockKind::layer,
              .layer = layer,
              .name = "layers." + std::to_string(layer),
              .parameters = {}};
  std::vector<Parameter>& p = block.parameters;
  const bool has_experts = m.num_experts > 0 && !m.layer_kind(layer).dense;
  add_norm(p, m, Module::norm1);
  if (m.layer_norms == 2) add_norm(p, m, Module::norm2);
  if (m.post_norms())
    for (const Module norm : {Module::post_norm1, Module::post_norm2}) add_norm(p, m, norm);
  if (m.qk_norm)
    for (const Module norm : {Module::q_norm, Module::k_norm})
      p.push_back(gain(norm, m, normed_size(m, norm)));
  if (has_experts) {
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
    if (m.gated())
      add_cut(p, Module::mlp_in, m.linear_bias, {2, m.ffn_size, m.hidden_size}, 1, 0, m.init_std);
    else
      add_cut(p, Module::mlp_in, m.linear_bias, {m.ffn_size, m.hidden_size}, 0, 0, m.init_std);
    add_out(p, m, Module::mlp_out, m.ffn_size);
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

Expr aligned(const Expr& elements, std::int64_t alignment) {
  return ceil(elements / double(alignment)) * double(alignment);
}

/// Elements of flat buffers that a parameter takes, all of it on one rank.
double all_elements(const Parameter& parameter) {
  return double(parameter.stored_elements(parameter.elements()));
}

/// Elements of the largest piece that tp cuts off.
Expr local_elements(const Parameter& parameter) {
  const auto cut_along = [&](int dim, const Expr& parts) {
    const double extent = double(parameter.shape[std::size_t(dim)]);
    return ceil(extent / parts) * (all_elements(parameter) / extent);
  };
  const Expr by_tp = cut_along(parameter.split_dim, Expr::variable("tp"));
  if (parameter.expert_dim < 0) return by_tp;
  const Expr ep = Expr::variable("ep");
  return select(less(1.0, ep), cut_along(parameter.expert_dim, ep), by_tp);
}

/// The matrices of a layer but for a router and a shared expert's gate, whose rows are no features,
/// and factors of adapters.
bool is_matrix(const Parameter& parameter) {
  return parameter.id.part == Part::weight && parameter.shape.size() > 1 &&
         parameter.id.module != Module::router && parameter.id.module != Module::shared_expert_gate;
}

/// Products take a matrix of blocks. Experts are not among them.
bool may_be_quantized(const Parameter& parameter) {
  return is_matrix(parameter) && parameter.expert_dim < 0 &&
         parameter.shape.back() % quantized_block == 0;
}

/// Moments of an embedding stay in fp32: most rows have no gradient in a step. Parameters with
/// gradients that are partial over tp keep fp32 too, because they come first in the layout, and so
/// do sinks, which tp would cut within blocks.
bool may_have_blocked_moments(const Parameter& parameter, BlockKind kind) {
  return kind != BlockKind::embedding && !parameter.frozen && !parameter.tp_partial &&
         parameter.id.module != Module::sinks && parameter.shape.back() % quantized_block == 0;
}

bool has_lean_state(const Parameter& parameter) {
  return parameter.unit == UpdateUnit::matrix || parameter.blocked_moments;
}

/// Indices of a block's parameters in the order of its layout: what is frozen last; before that,
/// what may be partial over tp first, and experts last.
std::vector<std::size_t> layout_order(const Block& block) {
  std::vector<std::size_t> order(block.parameters.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) {
    const Parameter& one = block.parameters[i];
    const int rarely_partial = one.tp_partial ? 0 : one.split_heads > 0 ? 1 : 2;
    return std::tuple(one.frozen, rarely_partial, one.expert_dim >= 0, has_lean_state(one));
  });
  return order;
}

/// "an adapter of rank 16 for attention.q, attention.v and of rank 8 for mlp.out, and all of head"
std::string adapter_text(const Adapter& adapter) {
  std::map<int, std::vector<std::string>, std::greater<>> targets;  // by rank
  for (const Adapter::Target& target : adapter.targets)
    targets[target.rank].push_back(module_name(target.module));
  std::vector<std::string> parts;
  for (const auto& [rank, names] : targets)
    parts.push_back(fmt::format("of rank {} for {}", rank, fmt::join(names, ", ")));
  std::vector<std::string> saved;
  std::ranges::transform(adapter.saved, std::back_inserter(saved), module_name);
  return fmt::format(
      "an adapter {}{}{}{}", fmt::join(parts, " and "),
      adapter.layers.empty() ? "" : fmt::format(" in layers {}", fmt::join(adapter.layers, ", ")),
      saved.empty() ? "" : ", and all of ", fmt::join(saved, ", "));
}

}  // namespace

std::int64_t Parameter::elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

Cut cut(std::int64_t extent, int parts, int index) {
  const std::int64_t each = ceil_div(extent, parts), first = std::min(each * index, extent);
  return {first, std::min(each, extent - first)};
}

namespace {

/// Moments in blocks lie behind all that have fp32: what comes before one of these has them too.
void block_moments(Block& block) {
  for (Parameter& one : block.parameters)
    one.blocked_moments = may_have_blocked_moments(one, block.kind);
  bool behind = true;
  const std::vector<std::size_t> order = layout_order(block);
  for (auto i = order.rbegin(); i != order.rend(); ++i) {
    Parameter& one = block.parameters[*i];
    behind = behind && (one.frozen || one.blocked_moments);
    one.blocked_moments = one.blocked_moments && behind;
  }
}

}  // namespace

std::vector<Block> blocks(const Config& config) {
  std::vector<Block> blocks{embedding_block(config)};
  for (int layer = 0; layer < config.num_layers; ++layer)
    blocks.push_back(layer_block(config, layer));
  blocks.push_back(head_block(config));
  // Adapters come last, so that the others have the numbers that they have without one.
  std::int64_t next = 0;
  const auto number = [&](bool adapters) {
    for (Block& block : blocks) {
      std::vector<Parameter*> ones;
      for (Parameter& one : block.parameters)
        if (one.id.is_adapter() == adapters) ones.push_back(&one);
      if (adapters)
        std::ranges::stable_sort(ones, {}, [&](const Parameter* one) {
          return std::pair(config.adapter.find(one->id.module), one->id.part);
        });
      for (Parameter* one : ones) one->first_index = std::exchange(next, next + one->elements());
    }
  };
  number(false), number(true);
  for (std::size_t i = 0; i < blocks.size(); ++i)
    for (Parameter& parameter : blocks[i].parameters) {
      parameter.name = blocks[i].name + "." + model::name(parameter.id);
      const bool stays = !config.has_backward(int(i)) ||
                         std::ranges::binary_search(config.frozen_parameters, parameter.name);
      parameter.frozen = parameter.frozen || stays;
      parameter.balanced = parameter.balanced && !stays;
      if (parameter.in_fp32) parameter.block_elements = 4 / weight_bytes(config.precision);
      if (blocks[i].kind != BlockKind::layer) continue;
      if (is_matrix(parameter)) parameter.unit = config.optimizer->unit();
      if (config.quantization == Quantization::none || !parameter.frozen ||
          !may_be_quantized(parameter))
        continue;
      parameter.quantization = config.quantization;
      parameter.block_elements = block_bytes(config.quantization) / weight_bytes(config.precision);
    }
  if (config.moments == Moments::fp8) std::ranges::for_each(blocks, block_moments);
  return blocks;
}

const Block& most_trained_layer(const Config& config, const std::vector<Block>& blocks,
                                bool dense) {
  return *std::ranges::max_element(blocks, {}, [&](const Block& block) {
    const Layout whole = layout(block, 1, 0, 1);
    const std::int64_t trained = whole.trained_elements;
    return block.kind == BlockKind::layer && config.layer_kind(block.layer).dense == dense
               ? grad_bytes * trained + state_bytes(config, whole, 0, trained)
               : -1;
  });
}

bool trains_layers_alike(const Config& config) {
  if (config.frozen_blocks <= 1 && config.frozen_parameters.empty()) return true;
  const std::vector<Block> all = blocks(config);
  const auto alike = [&](const Block& block) {
    return std::ranges::equal(block.parameters, all[1].parameters, {}, &Parameter::frozen,
                              &Parameter::frozen);
  };
  return std::all_of(all.begin() + 1, all.end() - 1, alike);
}

std::int64_t trained_alignment(const Block& block) {
  const bool blocked = std::ranges::any_of(block.parameters, &Parameter::blocked_moments);
  return blocked ? std::lcm(alignment_elements, std::int64_t{quantized_block}) : alignment_elements;
}

std::int64_t frozen_alignment(const Block& block) {
  std::int64_t alignment = alignment_elements;
  for (const Parameter& one : block.parameters)
    alignment = std::lcm(alignment, std::int64_t{one.block_elements});
  return alignment;
}

std::string quantization_fault(const Config& config, int tp, int ep) {
  if ((config.quantization == Quantization::none && config.moments != Moments::fp8) ||
      std::max(tp, ep) == 1)
    return {};
  for (const Block& block : blocks(config))
    for (const Parameter& one : block.parameters) {
      const bool quantized = one.quantization != Quantization::none || one.blocked_moments;
      const bool by_ep = ep > 1 && one.expert_dim >= 0;
      const int parts = by_ep ? ep : tp;
      const bool cuts_rows = one.splits(tp) && one.cut_dim(ep) + 1 == int(one.shape.size());
      if (!quantized || !cuts_rows ||
          one.shape.back() % (std::int64_t{parts} * quantized_block) == 0)
        continue;
      return fmt::format("{} = {} must cut rows of {}, which have {} values, between {} of {}",
                         by_ep ? "ep" : "tp", parts, model::name(one.id), one.shape.back(),
                         one.blocked_moments ? "blocks of moments" : "quantized blocks",
                         quantized_block);
    }
  return {};
}

Layout layout(const Block& block, int tp, int tp_rank, int shards, ExpertRanks experts) {
  Layout layout{.pieces = {},
                .partial_elements = 0,
                .dense_elements = 0,
                .full_state_elements = 0,
                .trained_elements = 0,
                .elements = 0};
  std::int64_t alignment = trained_alignment(block);
  const auto add = [&](std::size_t i) {
    const Parameter& parameter = block.parameters[i];
    Piece piece{.parameter = int(i),
                .shape = parameter.shape,
                .offset = std::vector<std::int64_t>(parameter.shape.size(), 0),
                .first = layout.elements,
                .elements = parameter.stored_elements(parameter.elements())};
    std::int64_t room = piece.elements;
    if (parameter.splits(tp)) {
      const bool whole = experts.count > 1 && parameter.expert_dim >= 0;
      const int parts = whole ? experts.count : tp;
      const auto dim = std::size_t(parameter.cut_dim(experts.count));
      const std::int64_t extent = parameter.shape[dim], rest = parameter.elements() / extent;
      const Cut mine = cut(extent, parts, whole ? experts.rank : tp_rank);
      piece.shape[dim] = mine.count;
      piece.offset[dim] = mine.first;
      piece.elements = parameter.stored_elements(mine.count * rest);
      room = parameter.stored_elements(cut(extent, parts, 0).count * rest);
    }
    layout.elements += round_up(room, alignment);
    if (parameter.is_partial(tp) && !parameter.frozen) layout.partial_elements = layout.elements;
    if (parameter.expert_dim < 0 && !parameter.frozen) layout.dense_elements = layout.elements;
    if (!has_lean_state(parameter) && !parameter.frozen)
      layout.full_state_elements = layout.elements;
    layout.pieces.push_back(std::move(piece));
  };
  const auto pad = [&](std::int64_t first) {
    layout.elements = first + round_up(layout.elements - first, alignment * shards);
  };
  const std::vector<std::size_t> order = layout_order(block);
  const auto frozen =
      std::ranges::find_if(order, [&](std::size_t i) { return block.parameters[i].frozen; });
  std::for_each(order.begin(), frozen, add), pad(0);
  layout.trained_elements = layout.elements;
  alignment = frozen_alignment(block);
  std::for_each(frozen, order.end(), add), pad(layout.trained_elements);
  return layout;
}

const Piece& Layout::piece(const Block& block, std::string_view suffix) const {
  for (const Piece& piece : pieces)
    if (block.parameters[piece.parameter].name.ends_with(suffix)) return piece;
  throw Error(Failure::bug, "block {} has no parameter '{}'", block.name, suffix);
}

LayoutElements layout_elements(const Config& config, const Block& block) {
  const Expr shards = Expr::variable("dp") * Expr::variable("cp") / expert_data_ranks(config);
  const std::int64_t of_trained = trained_alignment(block), of_frozen = frozen_alignment(block);
  LayoutElements elements{0.0, 0.0, 0.0, 0.0};
  for (const std::size_t i : layout_order(block)) {
    const Parameter& parameter = block.parameters[i];
    const Expr whole = all_elements(parameter);
    const Expr heads = local_heads(parameter.split_heads);
    const Expr local = parameter.split_dim < 0     ? whole
                       : parameter.split_heads > 0 ? whole / double(parameter.split_heads) * heads
                                                   : local_elements(parameter);
    if (parameter.frozen)
      elements.frozen += aligned(local, of_frozen);
    else
      elements.trained += aligned(local, of_trained);
    if (parameter.frozen) continue;
    if (parameter.expert_dim < 0) elements.dense = elements.trained;
    if (!has_lean_state(parameter)) elements.full_state = elements.trained;
  }
  const auto padded = [&](const Expr& all, std::int64_t alignment) {
    const Expr step = shards * double(alignment);
    return ceil(all / step) * step;
  };
  return {padded(elements.trained, of_trained), padded(elements.frozen, of_frozen), elements.dense,
          elements.full_state};
}

Matrices matrices(const std::vector<std::int64_t>& shape) {
  Matrices found{1, shape.at(shape.size() - 2), shape.back()};
  for (std::size_t i = 0; i + 2 < shape.size(); ++i) found.count *= shape[i];
  return found;
}

MatrixWorkspace matrix_workspace(const Config& config, const Block& block) {
  constexpr std::int64_t line = alignment_elements * sizeof(float);
  MatrixWorkspace largest;
  for (const Parameter& one : block.parameters) {
    if (one.frozen || one.unit == UpdateUnit::element) continue;
    const Matrices of = matrices(one.shape);
    const std::int64_t short_side = std::min(of.rows, of.columns);
    const auto bytes = [&](std::int64_t elements) {
      return round_up(elements * weight_bytes(config.precision), line);
    };
    largest = {.squares_bytes = line,
               .matrix_bytes = std::max(largest.matrix_bytes, bytes(of.elements())),
               .gram_bytes = std::max(largest.gram_bytes, bytes(short_side * short_side))};
  }
  return largest;
}

std::pair<std::int64_t, std::int64_t> cut_matrices(const Block& block, const Layout& layout, int tp,
                                                   int ep) {
  std::pair<std::int64_t, std::int64_t> range{layout.trained_elements, 0};
  for (std::size_t i = 0; i < layout.pieces.size(); ++i) {
    const Piece& piece = layout.pieces[i];
    const Parameter& one = block.parameters[std::size_t(piece.parameter)];
    if (one.frozen || one.unit == UpdateUnit::element || !one.cuts_matrices(tp, ep)) continue;
    const bool last = i + 1 == layout.pieces.size();
    const std::int64_t end = last ? layout.elements : layout.pieces[i + 1].first;
    range = {std::min(range.first, piece.first),
             std::max(range.second, std::min(end, layout.trained_elements))};
  }
  return {range.first, std::max(range.first, range.second)};
}

Expr token_table_elements(const Config& config) {
  return local_elements(token_table(Module::token, config));
}

Expr layout_partial_elements(const Block& block) {
  const std::int64_t alignment = trained_alignment(block);
  Expr elements = 0.0;
  for (const Parameter& parameter : block.parameters) {
    if (parameter.frozen) continue;
    const Expr whole = aligned(double(parameter.elements()), alignment);
    if (parameter.tp_partial) elements += whole;
    if (parameter.split_heads > 0) elements += heads_are_whole(parameter.split_heads) * whole;
  }
  return elements;
}

std::int64_t num_active_parameters(const Config& config) {
  std::int64_t sum = 0;
  for (const Block& block : blocks(config))
    for (const Parameter& one : block.parameters)
      sum += one.id.is_of_experts() ? one.elements() / config.num_experts * config.experts_per_token
                                    : one.elements();
  return sum;
}

namespace {

template <class Counts>
std::int64_t num_parameters_that(const Config& config, Counts&& counts) {
  std::int64_t sum = 0;
  for (const Block& block : blocks(config))
    for (const Parameter& one : block.parameters)
      if (counts(one)) sum += one.elements();
  return sum;
}

}  // namespace

std::int64_t num_parameters(const Config& config) {
  return num_parameters_that(config, [](const Parameter&) { return true; });
}

std::int64_t num_quantized(const Config& config) {
  return num_parameters_that(
      config, [](const Parameter& one) { return one.quantization != Quantization::none; });
}

std::int64_t num_blocked_moments(const Config& config) {
  return num_parameters_that(config, [](const Parameter& one) { return one.blocked_moments; });
}

std::set<std::string> frozen_names(const Config& config) {
  std::set<std::string> names;
  for (const Block& block : blocks(config))
    for (const Parameter& parameter : block.parameters)
      if (parameter.frozen && !parameter.balanced) names.insert(parameter.name);
  return names;
}

std::string frozen_text(const Config& config) {
  std::int64_t within = 0, of_blocks = 0;
  const std::vector<Block> all = blocks(config);
  for (std::size_t i = 0; i < all.size(); ++i)
    for (const Parameter& parameter : all[i].parameters)
      if (parameter.frozen && !parameter.in_fp32)
        (config.has_backward(int(i)) ? within : of_blocks) += parameter.elements();
  if (within + of_blocks == 0) return "";
  std::vector<std::string> parts;
  if (of_blocks > 0)
    parts.push_back(fmt::format(
        "embedding{} without gradients, optimizer state and backward",
        config.frozen_blocks > 1 ? " to " + all[std::size_t(config.frozen_blocks) - 1].name : ""));
  if (within > 0)
    parts.push_back(
        fmt::format("{} without gradients and optimizer state", format_count(double(within))));
  if (config.adapter.exists()) parts.push_back("trained: " + adapter_text(config.adapter));
  if (config.quantization != Quantization::none)
    parts.push_back(fmt::format("{} in blocks of {}", format_count(double(num_quantized(config))),
                                brume::name(config.quantization)));
  return fmt::format("{} of {} parameters: {}", format_count(double(within + of_blocks)),
                     format_count(double(num_parameters(config))), fmt::join(parts, "; "));
}

float initial_value(const Parameter& parameter, std::int64_t element, std::uint64_t seed) {
  if (parameter.init == Init::zeros) return 0.0f;
  if (parameter.init == Init::ones) return 1.0f;
  // Two uniform numbers per element, from a counter that is unique in the model.
  const std::uint64_t counter = std::uint64_t(parameter.first_index + element);
  const auto hash = [](std::uint64_t x) { return mix(x + golden_step); };
  const std::uint64_t key = hash(seed);
  const double u1 = uniform(hash(key ^ (2 * counter)));
  if (parameter.init == Init::uniform) return float(parameter.std * std::sqrt(12.0) * (u1 - 0.5));
  const double u2 = uniform(hash(key ^ (2 * counter + 1)));
  const double normal = std::sqrt(-2.0 * std::log(u1)) * std::cos(2.0 * std::numbers::pi * u2);
  return float(parameter.std * normal);
}

}  // namespace brume::model
