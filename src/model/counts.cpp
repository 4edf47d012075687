/// @file Numbers of parameters, and a text about those that are frozen.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>

#include "base/text.hpp"
#include "model/model.hpp"

namespace brume::model {
namespace {

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

template <class Counts>
std::int64_t num_parameters_that(const Config& config, Counts&& counts) {
  std::int64_t sum = 0;
  for (const Block& block : blocks(config))
    for (const Parameter& one : block.parameters)
      if (counts(one)) sum += one.elements();
  return sum;
}

}  // namespace

std::int64_t num_active_parameters(const Config& config) {
  std::int64_t sum = 0;
  for (const Block& block : blocks(config))
    for (const Parameter& one : block.parameters)
      sum += one.id.is_of_experts() ? one.elements() / config.num_experts * config.experts_per_token
                                    : one.elements();
  return sum;
}

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

}  // namespace brume::model
