/// @file Blocks, their parameters, and how these lie in flat buffers.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <numeric>

#include "base/error.hpp"
#include "base/text.hpp"
#include "model/model.hpp"

namespace brume::model {
namespace {

constexpr std::int64_t alignment_elements = 16;  // one cache line of fp32

Block embedding_block(const Config& m) {
  return {.kind = BlockKind::embedding,
          .name = "embedding",
          .parameters = {
              {.name = "embedding.token",
               .shape = {m.vocab_size, m.hidden_size},
               .decays = true,
               .init = Init::normal,
               .std = m.init_std},
              {.name = "embedding.position",
               .shape = {m.seq_len, m.hidden_size},
               .decays = true,
               .init = Init::normal,
               .std = m.init_std},
          }};
}

Block layer_block(const Config& m, int layer) {
  const std::int64_t hidden = m.hidden_size, ffn = m.ffn_size;
  // What flows back into the residual stream starts smaller, so its variance does not grow with
  // depth.
  const double output_std = m.init_std / std::sqrt(2.0 * m.num_layers);
  Block block{.kind = BlockKind::layer,
              .layer = layer,
              .name = "layers." + std::to_string(layer),
              .parameters = {
                  {.name = "norm1.gain", .shape = {hidden}, .tp_partial = true, .init = Init::ones},
                  {.name = "norm1.bias", .shape = {hidden}, .tp_partial = true},
                  {.name = "norm2.gain", .shape = {hidden}, .tp_partial = true, .init = Init::ones},
                  {.name = "norm2.bias", .shape = {hidden}, .tp_partial = true},
                  // q, k and v are a dimension of their own, so that tp cuts each of them by heads.
                  {.name = "attention.qkv.weight",
                   .shape = {3, hidden, hidden},
                   .split_dim = 1,
                   .decays = true,
                   .init = Init::normal,
                   .std = m.init_std},
                  {.name = "attention.qkv.bias", .shape = {3, hidden}, .split_dim = 1},
                  {.name = "attention.out.weight",
                   .shape = {hidden, hidden},
                   .split_dim = 1,
                   .decays = true,
                   .init = Init::normal,
                   .std = output_std},
                  {.name = "attention.out.bias", .shape = {hidden}},
                  {.name = "mlp.in.weight",
                   .shape = {ffn, hidden},
                   .split_dim = 0,
                   .decays = true,
                   .init = Init::normal,
                   .std = m.init_std},
                  {.name = "mlp.in.bias", .shape = {ffn}, .split_dim = 0},
                  {.name = "mlp.out.weight",
                   .shape = {hidden, ffn},
                   .split_dim = 1,
                   .decays = true,
                   .init = Init::normal,
                   .std = output_std},
                  {.name = "mlp.out.bias", .shape = {hidden}},
              }};
  for (Parameter& parameter : block.parameters) parameter.name = block.name + "." + parameter.name;
  return block;
}

Block head_block(const Config& m) {
  Block block{.kind = BlockKind::head,
              .name = "head",
              .parameters = {
                  {.name = "head.norm.gain", .shape = {m.hidden_size}, .init = Init::ones},
                  {.name = "head.norm.bias", .shape = {m.hidden_size}},
              }};
  if (!m.tied_head)
    block.parameters.push_back({.name = "head.weight",
                                .shape = {m.vocab_size, m.hidden_size},
                                .decays = true,
                                .init = Init::normal,
                                .std = m.init_std});
  return block;
}

/// A well-mixed 64-bit hash of a counter (splitmix64's finalizer constants, Steele et al. 2014).
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

double uniform(std::uint64_t bits) { return (double(bits >> 11) + 0.5) * 0x1.0p-53; }

}  // namespace

std::int64_t Parameter::elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::vector<Block> blocks(const Config& config) {
  std::vector<Block> blocks{embedding_block(config)};
  for (int layer = 0; layer < config.num_layers; ++layer)
    blocks.push_back(layer_block(config, layer));
  blocks.push_back(head_block(config));
  std::int64_t next = 0;
  for (Block& block : blocks)
    for (Parameter& parameter : block.parameters) {
      parameter.first_index = next;
      next += parameter.elements();
    }
  return blocks;
}

Layout layout(const Block& block, int tp, int tp_rank, int shards) {
  Layout layout{.pieces = {}, .partial_elements = 0, .elements = 0};
  for (std::size_t i = 0; i < block.parameters.size(); ++i) {
    const Parameter& parameter = block.parameters[i];
    Piece piece{.parameter = int(i),
                .shape = parameter.shape,
                .offset = std::vector<std::int64_t>(parameter.shape.size(), 0),
                .first = layout.elements,
                .elements = parameter.elements()};
    if (parameter.split_dim >= 0) {
      std::int64_t& extent = piece.shape[std::size_t(parameter.split_dim)];
      require(extent % tp == 0, Failure::bug, "tp {} does not divide {}", tp, parameter.name);
      extent /= tp;
      piece.elements /= tp;
      piece.offset[std::size_t(parameter.split_dim)] = extent * tp_rank;
    }
    layout.elements += round_up(piece.elements, alignment_elements);
    if (parameter.tp_partial) layout.partial_elements = layout.elements;
    layout.pieces.push_back(std::move(piece));
  }
  layout.elements = round_up(layout.elements, alignment_elements * shards);
  return layout;
}

const Piece& Layout::piece(const Block& block, std::string_view suffix) const {
  for (const Piece& piece : pieces)
    if (block.parameters[std::size_t(piece.parameter)].name.ends_with(suffix)) return piece;
  throw Error(Failure::bug, "block {} has no parameter '{}'", block.name, suffix);
}

Expr layout_elements(const Block& block) {
  const Expr tp = Expr::variable("tp"), dp = Expr::variable("dp");
  Expr elements = 0.0;
  for (const Parameter& parameter : block.parameters) {
    const Expr whole = double(parameter.elements());
    const Expr local = parameter.split_dim >= 0 ? whole / tp : whole;
    elements += ceil(local / double(alignment_elements)) * double(alignment_elements);
  }
  const Expr step = dp * double(alignment_elements);
  return ceil(elements / step) * step;
}

std::int64_t num_parameters(const Config& config) {
  std::int64_t sum = 0;
  for (const Block& block : blocks(config))
    for (const Parameter& parameter : block.parameters) sum += parameter.elements();
  return sum;
}

float initial_value(const Parameter& parameter, std::int64_t element, std::uint64_t seed) {
  if (parameter.init == Init::zeros) return 0.0f;
  if (parameter.init == Init::ones) return 1.0f;
  // Two uniform numbers per element, from a counter that is unique in the model.
  const std::uint64_t counter = std::uint64_t(parameter.first_index + element);
  const std::uint64_t key = mix(seed);
  const double u1 = uniform(mix(key ^ (2 * counter)));
  const double u2 = uniform(mix(key ^ (2 * counter + 1)));
  const double normal = std::sqrt(-2.0 * std::log(u1)) * std::cos(2.0 * std::numbers::pi * u2);
  return float(parameter.std * normal);
}

}  // namespace brume::model
