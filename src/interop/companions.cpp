/// @file Files that belong to a model beside its weights.
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "base/files.hpp"
#include "deck/json.hpp"
#include "interop/hugging_face.hpp"
#include "tokenizer/tokenizer.hpp"

namespace brume::interop {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::array companions{"config.json",        "generation_config.json",
                                "tokenizer.json",     "tokenizer_config.json",
                                "tokenizer.model",    "special_tokens_map.json",
                                "added_tokens.json",  "vocab.json",
                                "merges.txt",         "spiece.model",
                                "chat_template.jinja"};
constexpr std::int64_t largest_bytes = std::int64_t{256} << 20;

/// The object that a file holds; nothing where there is no such file.
std::optional<json> load(const fs::path& path) {
  std::error_code none;
  if (!fs::exists(path, none)) return std::nullopt;
  json file = deck::load_json(path.string(), std::size_t(largest_bytes));
  require(file.is_object(), Failure::input, "{}: must be an object", path.string());
  return file;
}

/// Whether an object has a value of that kind under a key.
bool has(const json& object, const char* key, json::value_t kind) {
  return object.is_object() && object.contains(key) && object[key].type() == kind;
}

/// The special token with which a post-processor of tokenizer.json begins a text.
std::string first_of_template(const json& processor) {
  if (has(processor, "processors", json::value_t::array))
    for (const json& one : processor["processors"])
      if (std::string token = first_of_template(one); !token.empty()) return token;
  if (!has(processor, "single", json::value_t::array) || processor["single"].empty()) return {};
  const json& first = processor["single"].front();
  if (!has(first, "SpecialToken", json::value_t::object)) return {};
  const json& token = first["SpecialToken"];
  return has(token, "id", json::value_t::string) ? token["id"].get<std::string>() : std::string();
}

}  // namespace

std::vector<std::string> copy_companions(const fs::path& from, const fs::path& to) {
  std::vector<std::string> copied;
  std::error_code none;
  for (const char* name : companions) {
    if (!fs::exists(from / name, none)) continue;
    make_directory(to);
    write_file(to / name, read_file(from / name, Failure::input, largest_bytes, Links::follow));
    copied.emplace_back(name);
  }
  return copied;
}

std::vector<std::int32_t> end_tokens(const fs::path& folder) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    const std::optional<json> file = load(folder / name);
    if (!file || !file->contains("eos_token_id") || (*file)["eos_token_id"].is_null()) continue;
    const json& given = (*file)["eos_token_id"];
    std::vector<std::int32_t> ids;
    for (const json& id : given.is_array() ? given : json::array({given})) {
      if (id.is_number_integer() && id < 0) continue;  // none
      require(id.is_number_unsigned() && id <= 0x7fffffff, Failure::input,
              "{}: 'eos_token_id' must be a token or a list of tokens", (folder / name).string());
      ids.push_back(id.get<std::int32_t>());
    }
    return ids;
  }
  return {};
}

std::string begin_token(const fs::path& tokenizer) {
  const bool in_folder = fs::is_directory(tokenizer), is_json = tokenizer.extension() == ".json";
  const fs::path folder = tokenizer::folder_of(tokenizer);
  const fs::path named = in_folder ? folder / "tokenizer.json" : tokenizer;
  if (const std::optional<json> file = in_folder || is_json ? load(named) : std::nullopt)
    return file->contains("post_processor") ? first_of_template((*file)["post_processor"])
                                            : std::string();
  const std::optional<json> config = load(folder / "tokenizer_config.json");
  if (!config || !config->contains("add_bos_token") || (*config)["add_bos_token"] != true)
    return {};
  if (has(*config, "bos_token", json::value_t::string)) return (*config)["bos_token"];
  const json token = config->value("bos_token", json());
  return has(token, "content", json::value_t::string) ? token["content"].get<std::string>()
                                                      : std::string();
}

}  // namespace brume::interop
