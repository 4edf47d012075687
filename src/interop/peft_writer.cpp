/// @file Adapters written in the format of PEFT.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "base/files.hpp"
#include "base/log.hpp"
#include "peft.hpp"

namespace brume::interop {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// A module of a tensor: its name in a layer, or outside of layers that in the model.
std::string module_in(std::string_view tensor, const model::Config& config) {
  tensor.remove_prefix(peft_prefix.size());
  for (const std::string_view end : {".lora_A.weight", ".lora_B.weight", ".weight", ".bias"})
    if (tensor.ends_with(end)) {
      tensor.remove_suffix(end.size());
      break;
    }
  const families::TensorNames& names = config.family->tensors;
  const std::string layers = names.prefix + names.layers;
  if (tensor.starts_with(layers)) tensor = tensor.substr(tensor.find('.', layers.size()) + 1);
  return std::string(tensor);
}

}  // namespace

void write_adapter(const fs::path& directory, const model::Config& config,
                   const deck::AdapterKeys& keys, const std::string& base, Dtype dtype,
                   const FillSlabs& fill) {
  HuggingFaceLayout layout = adapter_layout(config);
  for (NewTensor& tensor : layout.tensors) tensor.dtype = dtype;
  TensorWriter file(directory / adapter_tensor_file, layout.tensors);
  for (const Placed& placed : layout.parameters) file.write(tensor_values(placed, fill));
  file.commit();

  const double alpha = keys.alpha > 0.0 ? keys.alpha : keys.rank;
  std::set<std::string> modules, parameters, saved;
  json ranks = json::object(), alphas = json::object();
  for (const Placed& placed : layout.parameters) {
    const std::string_view parameter = parameter_of(placed.parameter.id.module);
    const std::string module =
        parameter.empty() ? module_in(placed.runs.front().tensor, config) : std::string(parameter);
    const model::Adapter::Target* const target = config.adapter.find(placed.parameter.id.module);
    (!parameter.empty() ? parameters : target ? modules : saved).insert(module);
    if (target && target->rank != keys.rank) ranks[module] = target->rank;
    if (target && target->alpha != alpha) alphas[module] = target->alpha;
  }
  const auto is_dense = [](const model::Adapter::Target& target) {
    const std::string name = model::module_name(target.module);
    return name.starts_with("mlp.") && !name.starts_with("mlp.experts.");
  };
  if (config.num_experts > 0 && std::ranges::any_of(config.adapter.targets, is_dense))
    log::warn(
        "{}: PEFT 0.21 leaves out terms of mlp.* but of experts in mixtures of experts, for which "
        "it renames their projections; --merge writes a whole model with all terms",
        directory.string());
  const bool tied = config.tied_head && config.adapter.saves(model::Module::token);
  const json written{
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path", base.empty() ? json() : json(base)},
      {"inference_mode", true},
      {"r", keys.rank},
      {"lora_alpha", alpha},
      {"use_rslora", keys.scaling == "rslora"},
      {"target_modules", modules},
      {"target_parameters", parameters.empty() ? json() : json(parameters)},
      {"layers_to_transform", config.adapter.layers.empty() ? json() : json(config.adapter.layers)},
      {"lora_dropout", 0.0},
      {"bias", "none"},
      {"fan_in_fan_out", config.family->tensors.transposed},
      {"init_lora_weights", true},
      {"modules_to_save", saved.empty() ? json() : json(saved)},
      {"ensure_weight_tying", tied},
      {"rank_pattern", ranks},
      {"alpha_pattern", alphas}};
  brume::write_file(directory / adapter_config_file, written.dump(2) + "\n");
}

}  // namespace brume::interop
