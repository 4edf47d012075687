#include "peft.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/log.hpp"
#include "deck/json.hpp"
#include "json_reader.hpp"
#include "model/layer.hpp"

namespace brume::interop {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* adapter_config_file = "adapter_config.json";
constexpr const char* adapter_tensor_file = "adapter_model.safetensors";
constexpr const char* pickled_adapter = "adapter_model.bin";
constexpr std::size_t largest_adapter_config_bytes = std::size_t{1} << 20;

/// The values of a factor as its tensor has them.
std::vector<float> tensor_values(const Placed& placed, const FillSlabs& fill) {
  std::vector<float> values(std::size_t(placed.parameter.elements()));
  std::vector<engine::Slab> slabs{whole_slab(placed.parameter, values.data())};
  fill(slabs);
  std::vector<float> turned(values.size());
  auto from = values.begin();
  for (const RowRun& run : placed.runs) {
    const std::int64_t count = run.count * placed.columns();
    std::copy_n(from, count, turned.begin() + run.first * placed.columns());
    from += count;
  }
  return turned;
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
  for (const char* key : {"alpha_pattern", "rank_pattern", "bias", "lora_bias", "use_dora",
                          "use_qalora", "use_bdlora", "alora_invocation_tokens", "arrow_config",
                          "kasa_config", "monteclora_config", "layer_replication"})
    require(is_off(value_of(config, key)), Failure::input,
            "{}: '{}' = {} is not supported: found an adapter that is not W x + scale B A x alone",
            name, key, deck::describe_json(value_of(config, key)));
  require(is_off(value_of(config, "target_parameters")), Failure::input,
          "{}: 'target_parameters' = {} is not supported: adapters fit linear layers, not experts",
          name, deck::describe_json(value_of(config, "target_parameters")));
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

/// The file of an adapter's factors. @throws Error(input) where it is in another format
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

void check_adapter_config(const json& config, const model::Adapter& adapter,
                          const std::string& name) {
  const double rank = number(at(config, "r", name), "r", name),
               alpha = number(at(config, "lora_alpha", name), "lora_alpha", name);
  require(rank == adapter.rank, Failure::input,
          "{}: 'r' = {}, but training.adapter.rank = {}: set it to the file's", name, rank,
          adapter.rank);
  const bool rslora = value_of(config, "use_rslora") == true;
  const double scale = alpha / (rslora ? std::sqrt(rank) : rank);
  constexpr double rounding = 1e-12;
  require(std::abs(scale - adapter.scale) <= rounding * std::abs(scale), Failure::input,
          "{}: terms have the scale {}, those of [training.adapter] {}: set alpha = {} and scaling "
          "= \"{}\"",
          name, scale, adapter.scale, alpha, rslora ? "rslora" : "standard");
  if (const json dropout = value_of(config, "lora_dropout");
      !is_off(dropout) && dropout != 0.0 && log::leads())
    log::warn("{}: 'lora_dropout' = {} has no effect", name, deck::describe_json(dropout));
}

}  // namespace

fs::path adapter_file(const fs::path& directory, const model::Adapter& adapter) {
  check_adapter_config(adapter_config(directory), adapter,
                       (directory / adapter_config_file).string());
  return tensors_in(directory);
}

deck::AdapterKeys adapter_keys(const fs::path& directory, const model::Config& config) {
  const json file = adapter_config(directory);
  const std::string name = (directory / adapter_config_file).string();
  constexpr std::int64_t largest_rank = 4096;
  const std::int64_t rank = size(at(file, "r", name), "r", name);
  require(rank >= 1 && rank <= largest_rank, Failure::input, "{}: 'r' = {}, expected 1 to {}", name,
          rank, largest_rank);
  deck::AdapterKeys keys{.rank = int(rank),
                         .alpha = number(at(file, "lora_alpha", name), "lora_alpha", name),
                         .scaling = value_of(file, "use_rslora") == true ? "rslora" : "standard",
                         .weights = directory.string()};
  const TensorFile tensors(tensors_in(directory));
  const auto has = [&](model::Module target) {
    model::Config adapted = config;
    adapted.adapter = {.rank = keys.rank, .scale = 1.0, .targets = {target}};
    try {
      return std::ranges::any_of(adapter_layout(adapted).tensors, [&](const NewTensor& tensor) {
        return tensors.tensors().contains(tensor.name);
      });
    } catch (const Error&) {  // PEFT has no adapters of this layer
      return false;
    }
  };
  for (const model::Module target : model::adapter_targets(config))
    if (has(target)) keys.targets.push_back(model::target_name(target));
  require(!keys.targets.empty(), Failure::input, "{}: has no tensor of this model's linear layers",
          tensors.name());
  return keys;
}

void write_adapter(const fs::path& directory, const model::Config& config,
                   const deck::AdapterKeys& keys, const std::string& base, Dtype dtype,
                   const FillSlabs& fill) {
  HuggingFaceLayout layout = adapter_layout(config);
  for (NewTensor& tensor : layout.tensors) tensor.dtype = dtype;
  TensorWriter file(directory / adapter_tensor_file, layout.tensors);
  for (const Placed& placed : layout.parameters) file.write(tensor_values(placed, fill));
  file.commit();

  std::set<std::string> modules;
  for (const auto& [weight, both] : factors(layout)) {
    const std::string name =
        weight.substr(config.family->tensors.prefix.size() + config.family->tensors.layers.size());
    const std::size_t begin = name.find('.') + 1;
    modules.insert(name.substr(begin, name.rfind('.') - begin));
  }
  const json written{{"peft_type", "LORA"},
                     {"task_type", "CAUSAL_LM"},
                     {"base_model_name_or_path", base.empty() ? json() : json(base)},
                     {"inference_mode", true},
                     {"r", keys.rank},
                     {"lora_alpha", keys.alpha > 0.0 ? keys.alpha : keys.rank},
                     {"use_rslora", keys.scaling == "rslora"},
                     {"target_modules", modules},
                     {"lora_dropout", 0.0},
                     {"bias", "none"},
                     {"fan_in_fan_out", config.family->tensors.transposed},
                     {"init_lora_weights", true},
                     {"modules_to_save", nullptr},
                     {"rank_pattern", json::object()},
                     {"alpha_pattern", json::object()}};
  brume::write_file(directory / adapter_config_file, written.dump(2) + "\n");
}

std::map<std::string, Factors> factors(const HuggingFaceLayout& layout) {
  constexpr std::string_view before = "base_model.model.", end = ".lora_A.weight";
  static_assert(end.size() == std::string_view(".lora_B.weight").size());
  std::map<std::string, Factors> all;
  for (const Placed& placed : layout.parameters) {
    const std::string& tensor = placed.runs.front().tensor;
    Factors& both =
        all[tensor.substr(before.size(), tensor.size() - before.size() - end.size()) + ".weight"];
    (placed.parameter.id.part == model::Part::lora_a ? both.a : both.b) = &placed;
  }
  return all;
}

AdapterTerm::AdapterTerm(const Factors& factors, const model::Adapter& adapter, Dtype dtype,
                         const FillSlabs& fill)
    : rank_(adapter.rank),
      width_(factors.a->columns()),
      scale_(float(adapter.scale)),
      dtype_(dtype),
      a_(tensor_values(*factors.a, fill)),
      b_(tensor_values(*factors.b, fill)) {}

MergeSums AdapterTerm::add(std::int64_t row, std::int64_t column, std::int64_t columns,
                           std::span<float> values) const {
  MergeSums sums;
  std::vector<float> term(static_cast<std::size_t>(columns));
  for (; !values.empty(); ++row, values = values.subspan(term.size())) {
    std::ranges::fill(term, 0.0f);
    for (std::int64_t k = 0; k < rank_; ++k) {
      const float b = b_[row * rank_ + k];
      const float* a = a_.data() + k * width_ + column;
      for (std::int64_t i = 0; i < columns; ++i) term[i] += b * a[i];
    }
    with_values(dtype_, [&]<typename Value>(Value) {
      for (std::int64_t i = 0; i < columns; ++i) {
        const float before = values[i], added = scale_ * term[i];
        values[i] += added;
        sums.weights += double(before) * before;
        sums.terms += double(added) * added;
        sums.kept += double(added) * (double(Value(values[i])) - double(Value(before)));
      }
    });
  }
  return sums;
}

MergeSums& MergeSums::operator+=(const MergeSums& other) {
  weights += other.weights;
  terms += other.terms;
  kept += other.kept;
  return *this;
}

}  // namespace brume::interop
