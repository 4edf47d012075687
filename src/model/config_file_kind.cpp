/// @file The architecture of a config.json, or the reason why it is not supported.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <string>
#include <vector>

#include "config_file.hpp"

namespace brume::model {
namespace {

/// What a file asks for that no family here has, as far as its keys and name say.
std::string missing(ConfigFile& file, const std::string& name, const Architecture* architecture) {
  std::vector<std::string> parts;
  for (const char* key :
       {"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"}) {
    const json* value = file.find(key);
    if (architecture != nullptr && architecture->experts) continue;
    if (value != nullptr && *value != 1 && parts.empty())
      parts.emplace_back("experts of another kind");
  }
  if (file.find("kv_lora_rank") != nullptr && (architecture == nullptr || !architecture->latent))
    parts.emplace_back("latent attention of another kind");
  const json* alibi = file.find("alibi");
  if ((alibi != nullptr && *alibi == true) || name.starts_with("Bloom") || name.starts_with("MPT"))
    parts.emplace_back("ALiBi positions");
  if (file.find("vision_config") != nullptr) parts.emplace_back("images");
  return fmt::format("{}", fmt::join(parts, " and "));
}

}  // namespace

Kind kind_of(ConfigFile& file) {
  const json* names = file.find("architectures");
  const std::string type = file.word("model_type");
  file.needs(names != nullptr || !type.empty(),
             "neither 'architectures' nor 'model_type' says what kind of model it is");
  file.needs(
      names == nullptr || (names->is_array() && names->size() == 1 && (*names)[0].is_string()),
      "'architectures' must be a list of one name, found {}",
      names ? deck::describe_json(*names) : "");
  const std::string name = names != nullptr ? (*names)[0].get<std::string>() : type;
  std::optional<Kind> found;
  std::vector<std::string> known;
  for (const Family& family : families::families())
    for (const Architecture& one : family.architectures) {
      known.push_back(names != nullptr ? one.name : one.model_type);
      if (known.back() == name) found.emplace(Kind{family, one});
    }
  const std::string without = missing(file, name, found ? &found->architecture : nullptr);
  file.needs(found.has_value(), "{} \"{:.40}\" is not supported{}. Supported: {}",
             names != nullptr ? "architecture" : "model_type", name,
             without.empty() ? "" : fmt::format(": it has {}", without), fmt::join(known, ", "));
  file.needs(without.empty(), "it has {}, which Brume does not support", without);
  return *found;
}

}  // namespace brume::model
