/// @file Adapters read in the format of PEFT: their configuration, and how it fits a model.
#include "peft.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "deck/json.hpp"
#include "json_reader.hpp"
#include "model/layer.hpp"
#include "tokenizer/pattern.hpp"

namespace brume::interop {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* pickled_adapter = "adapter_model.bin";
constexpr std::size_t largest_adapter_config_bytes = std::size_t{1} << 20;

constexpr std::pair<model::Module, std::string_view> expert_parameters[] = {
    {model::Module::experts_in, "mlp.experts.gate_up_proj"},
    {model::Module::experts_out, "mlp.experts.down_proj"}};

/// Whether a name in target_parameters is that of a parameter, or its end.
bool is_named(std::string_view parameter, const json& given) {
  const std::string name = given.is_string() ? given.get<std::string>() : "";
  return parameter == name || (!name.empty() && parameter.ends_with("." + name));
}

/// A key of adapter_config.json; null if the file leaves it out.
json value_of(const json& config, const char* key) {
  const auto found = config.find(key);
  return found == config.end() ? json() : *found;
}

/// Whether a value switches nothing on.
bool is_off(const json& value) {
  return value.is_null() || value == false || value == "none" ||
         ((value.is_structured() || value.is_string()) && value.empty());
}

/// Refuses what changes the computation without a tensor of its own.
void check_features(const json& config, const std::string& name) {
  for (const char* key :
       {"bias", "lora_bias", "use_dora", "use_qalora", "use_bdlora", "alora_invocation_tokens",
        "arrow_config", "kasa_config", "monteclora_config", "layer_replication"})
    require(is_off(value_of(config, key)), Failure::input,
            "{}: '{}' = {} is not supported: found an adapter that is not W x + scale B A x alone",
            name, key, deck::describe_json(value_of(config, key)));
  const json parameters = value_of(config, "target_parameters");
  const auto is_of_experts = [](const json& one) {
    return std::ranges::any_of(expert_parameters,
                               [&](const auto& known) { return is_named(known.second, one); });
  };
  require(is_off(parameters) ||
              (parameters.is_array() && std::ranges::all_of(parameters, is_of_experts)),
          Failure::input,
          "{}: 'target_parameters' = {} is not supported: adapters fit linear layers, and "
          "mlp.experts.gate_up_proj and mlp.experts.down_proj",
          name, deck::describe_json(parameters));
  // Other initialisations take the first factors from the weights, and change these.
  const json init = value_of(config, "init_lora_weights");
  require(
      !init.is_string() || init == "gaussian" || init == "orthogonal" || init == "eva",
      Failure::input,
      "{}: 'init_lora_weights' = {} changed the base model too. Convert the adapter with PEFT's "
      "save_pretrained(..., path_initial_model_for_weight_conversion=...)",
      name, deck::describe_json(init));
}

/// The object in adapter_config.json, which describes a LoRA. @throws Error(input)
json adapter_config(const fs::path& directory) {
  const std::string name = (directory / adapter_config_file).string();
  json config = deck::load_json(name, largest_adapter_config_bytes);
  require(config.is_object() && value_of(config, "peft_type") == "LORA", Failure::input,
          "{}: 'peft_type' must be \"LORA\"", name);
  check_features(config, name);
  return config;
}

/// The file of an adapter's tensors. @throws Error(input) where it is in another format
fs::path tensors_in(const fs::path& directory) {
  const fs::path tensors = directory / adapter_tensor_file;
  std::error_code none;
  require(
      fs::exists(tensors, none) || !fs::exists(directory / pickled_adapter, none), Failure::input,
      "{}: found {} in Python's pickle format, expected {}. Load the adapter with PEFT and write "
      "it with save_pretrained",
      directory.string(), pickled_adapter, adapter_tensor_file);
  return tensors;
}

/// Values of modules, by the patterns of their names in a key of adapter_config.json.
///
/// @source  github.com/huggingface/peft, src/peft/utils/other.py, get_pattern_key
class ModuleValues {
 public:
  /// @throws Error(input)
  ModuleValues(const json& config, const char* key, const std::string& name) {
    const json patterns = value_of(config, key);
    where_ = fmt::format("{}: '{}'", name, key);
    constexpr std::size_t most = 10000;
    require(is_off(patterns) || (patterns.is_object() && patterns.size() <= most), Failure::input,
            "{} must be an object of at most {} patterns of modules", where_, most);
    if (is_off(patterns)) return;
    for (const auto& [pattern, value] : patterns.items())
      items_.push_back(
          {pattern, tokenizer::Pattern("\\A(?:.*\\.)?(?:" + pattern + ")\\z", where_), value});
  }

  /// @return null if no pattern fits
  /// @throws Error(input)  if several fit: readers of JSON may change their order
  json of(const std::string& module) const {
    const Item* found = nullptr;
    for (const Item& item : items_) {
      if (!item.fits.find(module, 0)) continue;
      require(found == nullptr || found->value == item.value, Failure::input,
              "{} has two values for the module {}: of the patterns {} and {}. Remove one", where_,
              module, shown(found ? found->pattern : ""), shown(item.pattern));
      found = &item;
    }
    return found == nullptr ? json() : found->value;
  }

 private:
  struct Item {
    std::string pattern;
    tokenizer::Pattern fits;
    json value;
  };
  std::string where_;
  std::vector<Item> items_;
};

bool is_rslora(const json& config) { return value_of(config, "use_rslora") == true; }

/// Rank and alpha that a file gives the targets of a model. @throws Error(input)
std::vector<model::Adapter::Target> targets_in(const json& config, const std::string& name,
                                               const model::Config& model) {
  const auto rank_of = [&](const json& value, const char* key) {
    const std::int64_t rank = size(value, key, name);
    require(rank >= 1 && rank <= deck::largest_adapter_rank, Failure::input,
            "{}: '{}' = {}, expected 1 to {}", name, key, rank, deck::largest_adapter_rank);
    return int(rank);
  };
  const int rank = rank_of(at(config, "r", name), "r");
  const double alpha = number(at(config, "lora_alpha", name), "lora_alpha", name);
  const ModuleValues ranks(config, "rank_pattern", name), alphas(config, "alpha_pattern", name);
  std::vector<model::Adapter::Target> targets = model.adapter.targets;
  std::set<model::Module> known;
  const HuggingFaceLayout layout = adapter_layout(model);
  for (const auto& [weight, both] : factors(layout)) {
    const std::string_view parameter = parameter_of(both.a->parameter.id.module);
    const std::string& tensor = both.a->runs.front().tensor;
    const std::string module =
        parameter.empty() ? weight.substr(0, weight.rfind('.'))
                          : tensor.substr(0, tensor.rfind("mlp.experts")).append(parameter);
    const json own_rank = ranks.of(module), own_alpha = alphas.of(module);
    const model::Adapter::Target here{
        .module = both.a->parameter.id.module,
        .rank = own_rank.is_null() ? rank : rank_of(own_rank, "rank_pattern"),
        .alpha = own_alpha.is_null() ? alpha : number(own_alpha, "alpha_pattern", name)};
    model::Adapter::Target& target =
        *std::ranges::find(targets, here.module, &model::Adapter::Target::module);
    require(known.insert(here.module).second || target == here, Failure::input,
            "{}: 'rank_pattern' or 'alpha_pattern' singles out layers: found rank {} and alpha {} "
            "for {}, rank {} and alpha {} in other layers. Brume needs the same in all layers",
            name, here.rank, here.alpha, module, target.rank, target.alpha);
    target = here;
  }
  return targets;
}

/// The layers whose factors are in a file; none: all of the model. @throws Error(input)
std::vector<int> layers_in(const TensorFile& file, const model::Config& model) {
  std::set<std::string> found;  // parameters
  const HuggingFaceLayout layout = adapter_layout(model);
  for (const Placed& placed : layout.parameters)
    if (file.tensors().contains(placed.runs.front().tensor)) found.insert(placed.parameter.name);
  std::vector<int> layers;
  for (const model::Block& block : model::blocks(model))
    if (std::ranges::any_of(block.parameters,
                            [&](const auto& one) { return found.contains(one.name); }))
      layers.push_back(block.layer);
  return std::ssize(layers) == model.num_layers ? std::vector<int>() : layers;
}

void check_adapter_config(const json& config, const model::Config& model, const std::string& name) {
  model::Adapter file{.targets = targets_in(config, name, model), .rslora = is_rslora(config)};
  for (std::size_t i = 0; i < file.targets.size(); ++i) {
    const model::Adapter::Target &found = file.targets[i], &asked = model.adapter.targets[i];
    require(found.rank == asked.rank, Failure::input,
            "{}: the term of {} has rank {}, that of [training.adapter] {}: set rank = {}", name,
            model::module_name(found.module), found.rank, asked.rank, found.rank);
    const double scale = file.scale(found), asked_scale = model.adapter.scale(asked);
    constexpr double rounding = 1e-12;
    require(
        std::abs(scale - asked_scale) <= rounding * std::abs(scale), Failure::input,
        "{}: the term of {} has the scale {}, that of [training.adapter] {}: set alpha = {} and "
        "scaling = \"{}\"",
        name, model::module_name(found.module), scale, asked_scale, found.alpha,
        file.rslora ? "rslora" : "standard");
  }
  if (const json dropout = value_of(config, "lora_dropout");
      !is_off(dropout) && dropout != 0.0 && log::leads())
    log::warn("{}: 'lora_dropout' = {} has no effect", name, deck::describe_json(dropout));
}

}  // namespace

std::string_view parameter_of(model::Module module) {
  for (const auto& [one, name] : expert_parameters)
    if (one == module) return name;
  return {};
}

fs::path adapter_file(const fs::path& directory, const model::Config& config) {
  check_adapter_config(adapter_config(directory), config,
                       (directory / adapter_config_file).string());
  return tensors_in(directory);
}

deck::AdapterKeys adapter_keys(const fs::path& directory, const model::Config& config) {
  const json file = adapter_config(directory);
  const std::string name = (directory / adapter_config_file).string();
  const TensorFile tensors(tensors_in(directory));
  const auto has = [&](model::Adapter adapter) {
    model::Config adapted = config;
    adapted.adapter = std::move(adapter);
    try {
      return std::ranges::any_of(adapter_layout(adapted).tensors, [&](const NewTensor& tensor) {
        return tensors.tensors().contains(tensor.name);
      });
    } catch (const Error&) {  // PEFT has no adapters of this layer
      return false;
    }
  };
  model::Config adapted = config;
  for (const model::Module module : model::adapter_targets(config)) {
    const model::Adapter::Target target{.module = module, .rank = 1, .alpha = 1.0};
    if (has({.targets = {target}})) adapted.adapter.targets.push_back(target);
  }
  for (const model::Module module : model::expert_targets(config))
    for (const json& parameter : value_of(file, "target_parameters"))
      if (is_named(parameter_of(module), parameter))
        adapted.adapter.targets.push_back({.module = module, .rank = 1, .alpha = 1.0});
  require(adapted.adapter.exists(), Failure::input,
          "{}: has no tensor of this model's linear layers", tensors.name());
  const std::vector<model::Adapter::Target> targets = targets_in(file, name, adapted);
  deck::AdapterKeys keys{.rank = targets.front().rank,
                         .alpha = targets.front().alpha,
                         .scaling = is_rslora(file) ? "rslora" : "standard",
                         .weights = directory.string()};
  for (const model::Adapter::Target& target : targets) {
    keys.targets.push_back(model::module_name(target.module));
    if (target.rank != keys.rank || target.alpha != keys.alpha)
      keys.groups.push_back({keys.targets.back(), target.rank, target.alpha});
  }
  keys.layers = layers_in(tensors, adapted);
  for (const model::Module module : model::modules_to_save(config))
    if (has({.saved = {module}})) keys.modules_to_save.push_back(model::module_name(module));
  return keys;
}

}  // namespace brume::interop
