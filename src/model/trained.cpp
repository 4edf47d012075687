/// @file Which parameters are trained: adapters and frozen parameters.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "config_parts.hpp"
#include "model/model.hpp"

namespace brume::model {
namespace {

/// Whether the first group that fits a parameter freezes it.
bool is_frozen(const std::vector<deck::ParameterGroupKeys>& groups, const std::string& name) {
  const auto group = std::ranges::find_if(
      groups, [&](const deck::ParameterGroupKeys& one) { return fits(one.pattern, name); });
  return group != groups.end() && group->frozen;
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

}  // namespace brume::model
