#include "companion_tokens.hpp"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.hpp"
#include "deck/json.hpp"
#include "json_text.hpp"

namespace brume::tokenizer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t most_bytes = std::size_t{1} << 26;
constexpr std::array special_tokens{"bos_token", "eos_token", "unk_token", "sep_token",
                                    "pad_token", "cls_token", "mask_token"};
constexpr std::array special_lists{"additional_special_tokens", "extra_special_tokens"};

json load(const fs::path& path) {
  std::error_code none;
  if (!fs::exists(path, none)) return json::object();
  json file = deck::load_json(path.string(), most_bytes);
  require(file.is_object(), Failure::input, "{}: must be an object", path.string());
  return file;
}

/// @param token  an object with its flags, or its text alone
CompanionToken companion(const fs::path& path, json token, bool special) {
  if (token.is_string()) token = {{"content", token}};
  const std::string content = text_at(token, "content");
  require(!content.empty(), Failure::input, "{}: a token has no content", path.string());
  token.emplace("normalized", !special && !is_on(token, "special"));
  return {.where = path.string(), .content = content, .token = std::move(token), .id = {}};
}

std::int32_t id_of(const fs::path& path, const std::string& content, const json& id) {
  require(is_id(id), Failure::input, "{}: the token '{:.200}' has the id {:.200}, expected 0 to {}",
          path.string(), content, id.dump(), most_ids - 1);
  return id.get<std::int32_t>();
}

/// Tokens that have a task, such as to end a text.
void add_special(const fs::path& path, const json& file, std::vector<CompanionToken>& all) {
  const auto add = [&](const json& token) {
    if (!token.is_null()) all.push_back(companion(path, token, true));
  };
  for (const char* key : special_tokens)
    if (file.contains(key)) add(file[key]);
  for (const char* key : special_lists)
    if (file.contains(key))
      for (const json& token : file[key]) add(token);
}

}  // namespace

std::vector<CompanionToken> companion_tokens(const fs::path& folder) {
  const fs::path config_path = folder / "tokenizer_config.json",
                 map_path = folder / "special_tokens_map.json",
                 added_path = folder / "added_tokens.json";
  const json config = load(config_path);
  std::vector<CompanionToken> numbered, special;
  if (const auto decoder = config.find("added_tokens_decoder"); decoder != config.end()) {
    require(decoder->is_object(), Failure::input, "{}: 'added_tokens_decoder' must be an object",
            config_path.string());
    for (const auto& [key, token] : decoder->items()) {
      CompanionToken made = companion(config_path, token, false);
      int id = -1;
      const char* end = key.data() + key.size();
      const bool number = std::from_chars(key.data(), end, id).ptr == end;
      made.id = id_of(config_path, made.content, number ? json(id) : json(key));
      made.decides = true;
      numbered.push_back(std::move(made));
    }
    add_special(config_path, config, special);
  } else {
    add_special(config_path, config, special);
    add_special(map_path, load(map_path), special);
    const json added = load(added_path);
    for (const auto& [content, id] : added.items()) {
      const bool has_task = std::ranges::count(special, content, &CompanionToken::content) > 0;
      CompanionToken made = companion(added_path, content, has_task);
      made.id = id_of(added_path, content, id);
      numbered.push_back(std::move(made));
    }
  }
  std::ranges::sort(numbered, {}, [](const CompanionToken& token) { return *token.id; });
  std::ranges::move(special, std::back_inserter(numbered));
  return numbered;
}

}  // namespace brume::tokenizer
