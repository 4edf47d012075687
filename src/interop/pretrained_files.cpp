/// @file Opening the safetensors files of a model: an index, names of tensors, tensors of codes.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "deck/json.hpp"
#include "hugging_face_config.hpp"
#include "peft.hpp"
#include "pretrained_weights.hpp"

namespace brume::interop {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* single_file = "model.safetensors";
constexpr const char* index_file = "model.safetensors.index.json";
constexpr const char* pickled_file = "pytorch_model.bin";
constexpr const char* pickled_index = "pytorch_model.bin.index.json";
constexpr std::size_t largest_index_bytes = std::size_t{64} << 20;

/// The tensors that an index promises, by file. @throws Error(input)
std::map<std::string, std::vector<std::string>> read_index(const fs::path& path) {
  const json index = deck::load_json(path.string(), largest_index_bytes);
  const json* map =
      index.is_object() && index.contains("weight_map") ? &index["weight_map"] : nullptr;
  require(map != nullptr && map->is_object() && !map->empty(), Failure::input,
          "{}: needs a 'weight_map' of tensors and their files", path.string());
  std::map<std::string, std::vector<std::string>> files;
  for (const auto& [tensor, file] : map->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    // A name from outside must not lead out of the directory.
    constexpr std::size_t longest_name = 255;  // that a file system has
    require(name.ends_with(".safetensors") && name.size() <= longest_name &&
                name.find('/') == std::string::npos && name.find('\0') == std::string::npos,
            Failure::input,
            "{}: tensor {} must lie in a *.safetensors file beside the index, found {}",
            path.string(), shown(tensor), deck::describe_json(file));
    files[name].push_back(tensor);
  }
  constexpr std::size_t most_files = 10000;
  require(files.size() <= most_files, Failure::input, "{}: names {} files, at most {} are read",
          path.string(), files.size(), most_files);
  return files;
}

/// Blocks of 8-bit weights, from a directory's config.json; the library's where it has none.
BlockShape declared_blocks(const fs::path& directory) {
  constexpr BlockShape usual{128, 128};
  std::error_code none;
  const fs::path path = directory / "config.json";
  if (!fs::exists(path, none)) return usual;
  const json config = deck::load_json(path.string(), largest_index_bytes);
  const auto at = [](const json& object, const char* key) {
    return object.is_object() && object.contains(key) ? object[key] : json();
  };
  const json blocks = at(at(config, "quantization_config"), "weight_block_size");
  if (blocks.is_null()) return usual;
  bool usable = blocks.is_array() && blocks.size() == 2;
  for (const json& extent : usable ? blocks : json::array())
    usable = usable && extent.is_number_unsigned() && extent > 0 && extent <= 1 << 20;
  require(usable, Failure::input, "{}: 'weight_block_size' must be a list of two sizes, found {}",
          path.string(), deck::describe_json(blocks));
  return {blocks[0].get<std::int64_t>(), blocks[1].get<std::int64_t>()};
}

}  // namespace

bool is_hugging_face(const fs::path& directory) {
  std::error_code none;
  return std::ranges::any_of(
      std::initializer_list<const char*>{single_file, index_file, pickled_file, pickled_index},
      [&](const char* name) { return fs::exists(directory / name, none); });
}

PretrainedWeights::Impl::Impl(const fs::path& directory, const model::Config& config, FileKind kind)
    : name(directory.string()), tied(config.tied_head) {
  if (kind == FileKind::adapter) {
    layout = adapter_layout(config);
    noun = "adapter";
    another = "[training.adapter] describes another adapter";
    without_head = untied =
        "but this model's head is tied: save the table with ensure_weight_tying = true in PEFT";
    prefix = layout.prefix;
    head = layout.head;
    add_file(adapter_file(directory, config));
    name = files.front()->name();
  } else {
    open(directory);
    has_spare_head = tied;
    ExpertTensors experts = ExpertTensors::separate;
    for (const auto& [tensor, file] : places) experts = form_of_experts(tensor).value_or(experts);
    layout = hugging_face_layout(config, experts);
    find_names();
    find_codes(declared_blocks(directory));
    find_extra_layers(config);
  }
  for (const Placed& placed : layout.parameters) parameters[placed.parameter.name] = &placed;
  check_tensors();
  check_shapes();
}

void PretrainedWeights::Impl::open(const fs::path& directory) {
  std::error_code none;
  if (fs::exists(directory / single_file, none)) return add_file(directory / single_file);
  for (const char* pickled : {pickled_file, pickled_index})
    require(!fs::exists(directory / pickled, none) || fs::exists(directory / index_file, none),
            Failure::input,
            "{}: has its weights in Python's pickle format: found {}, expected {} or {}. Load the "
            "model with the Transformers library and write it with save_pretrained",
            name, pickled, single_file, index_file);
  require(fs::exists(directory / index_file, none), Failure::input,
          "{}: holds neither {} nor {}: files of other formats are not read, but the Transformers "
          "library's save_pretrained writes these",
          name, single_file, index_file);
  open_files_of_index(directory);
}

void PretrainedWeights::Impl::open_files_of_index(const fs::path& directory) {
  for (const auto& [file, tensors] : read_index(directory / index_file)) {
    add_file(directory / file);
    for (const std::string& tensor : tensors)
      require(files.back()->tensors().contains(tensor), Failure::input,
              "{}: holds no tensor {}, which {} names there: a file is missing or of another model",
              files.back()->name(), shown(tensor), index_file);
  }
}

void PretrainedWeights::Impl::add_file(const fs::path& path) {
  files.push_back(std::make_unique<TensorFile>(path));
  for (const auto& [tensor, entry] : files.back()->tensors()) {
    const auto [at, is_new] = places.emplace(tensor, files.back().get());
    require(is_new, Failure::input, "{}: has tensor {}, which {} has too", files.back()->name(),
            shown(tensor), at->second->name());
  }
}

/// Finds what stands before the token table's name: nothing in files of a model without a head, and
/// more than the layout's prefix where the model was saved as a part of something, such as
/// torch.compile's "_orig_mod.". The head is such a part too, or stands alone.
void PretrainedWeights::Impl::find_names() {
  prefix = layout.prefix;
  head = layout.head;
  const std::string table = layout.tensors.front().name.substr(prefix.size());
  std::vector<std::string> found;
  for (const auto& [tensor, file] : places)
    if (tensor == table || tensor.ends_with("." + table))
      found.push_back(tensor.substr(0, tensor.size() - table.size()));
  if (found.size() != 1) return;
  prefix = found[0];
  if (!prefix.ends_with(layout.prefix)) return;
  const std::string whole = prefix.substr(0, prefix.size() - layout.prefix.size()) + layout.head;
  if (places.contains(whole)) head = whole;
}

std::string PretrainedWeights::Impl::name_in_files(const std::string& tensor) const {
  if (tensor == layout.head) return head;
  return prefix + tensor.substr(layout.prefix.size());
}

void PretrainedWeights::Impl::find_codes(BlockShape declared) {
  const FileOf files = [&](const std::string& tensor) -> const TensorFile* {
    const auto place = places.find(tensor);
    return place == places.end() ? nullptr : place->second;
  };
  for (const NewTensor& tensor : layout.tensors) {
    const std::string found = name_in_files(tensor.name);
    if (auto coded = coded_tensor(found, files, declared)) codes.emplace(found, std::move(coded));
  }
}

/// Finds layers behind the model's that predict later tokens: they project two tokens to one.
void PretrainedWeights::Impl::find_extra_layers(const model::Config& config) {
  if (architecture(config).extra_layers.empty()) return;
  constexpr std::string_view projection = "eh_proj.weight";
  const std::string layers = prefix + config.family->tensors.layers;
  for (const auto& [tensor, file] : places) {
    if (!tensor.starts_with(layers) || !tensor.ends_with(projection)) continue;
    const std::string layer = tensor.substr(0, tensor.size() - projection.size());
    if (std::atoi(layer.c_str() + layers.size()) >= config.num_layers) extra_layers.insert(layer);
  }
}

Dtype PretrainedWeights::Impl::dtype_of(const std::string& tensor) const {
  const auto found = codes.find(tensor);
  return found == codes.end() ? file_of(tensor).dtype(tensor) : found->second->dtype();
}

}  // namespace brume::interop
