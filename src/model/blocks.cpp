/// @file The blocks of a model, with the format and the number of each parameter.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <numeric>
#include <utility>

#include "base/mix.hpp"
#include "block_parameters.hpp"

namespace brume::model {
namespace {

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

/// Numbers all elements. Adapters come last, so that the others have the numbers that they have
/// without one.
void number(std::vector<Block>& blocks, const Config& config) {
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
}

/// Sets in which format a parameter is kept, and the unit of its updates.
void set_format(Parameter& parameter, BlockKind kind, const Config& config) {
  if (parameter.in_fp32) parameter.block_elements = 4 / weight_bytes(config.precision);
  if (kind != BlockKind::layer) return;
  if (is_matrix(parameter)) parameter.unit = config.optimizer->unit();
  if (config.quantization == Quantization::none || !parameter.frozen ||
      !may_be_quantized(parameter))
    return;
  parameter.quantization = config.quantization;
  parameter.block_elements = block_bytes(config.quantization) / weight_bytes(config.precision);
}

bool is_of_shared_expert(Module module) {
  return module >= Module::shared_in && module <= Module::shared_out;
}

}  // namespace

std::int64_t Parameter::elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::vector<Block> blocks(const Config& config) {
  std::vector<Block> blocks{embedding_block(config)};
  for (int layer = 0; layer < config.num_layers; ++layer)
    blocks.push_back(layer_block(config, layer));
  blocks.push_back(head_block(config));
  number(blocks, config);
  for (std::size_t i = 0; i < blocks.size(); ++i)
    for (Parameter& parameter : blocks[i].parameters) {
      parameter.name = blocks[i].name + "." + model::name(parameter.id);
      const bool stays = !config.has_backward(int(i)) ||
                         std::ranges::binary_search(config.frozen_parameters, parameter.name);
      parameter.frozen = parameter.frozen || stays;
      parameter.balanced = parameter.balanced && !stays;
      set_format(parameter, blocks[i].kind, config);
    }
  if (config.moments == Moments::fp8) std::ranges::for_each(blocks, block_moments);
  return blocks;
}

std::vector<Block> blocks(const Config& config, const Division& division) {
  std::vector<Block> all = blocks(config);
  if (!division.dispatches) return all;
  for (Block& block : all)
    for (Parameter& one : block.parameters)
      if (is_of_shared_expert(one.id.module)) {
        one.split_dim = one.expert_dim = -1;
        one.tp_partial = true;
      }
  return all;
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
