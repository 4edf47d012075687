#include "tokenizer/tokenizer.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "added_tokens.hpp"
#include "base/error.hpp"
#include "cutter.hpp"
#include "deck/json.hpp"
#include "merges.hpp"
#include "unicode.hpp"

namespace brume::tokenizer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t most_file_bytes = std::size_t{1} << 28;

fs::path file_of(const fs::path& path) {
  std::error_code none;
  return fs::is_directory(path, none) ? path / "tokenizer.json" : path;
}

json part(const json& file, const char* key) {
  const auto found = file.find(key);
  return found == file.end() ? json() : *found;
}

/// Whether text is normalized (NFC) before it is cut.
bool composes(const json& normalizer, const std::string& where) {
  if (normalizer.is_null()) return false;
  const std::string type = normalizer.is_object() ? normalizer.value("type", json()).dump() : "";
  require(type == "\"NFC\"", Failure::input, "{}: the normalizer {} is not supported", where, type);
  return true;
}

}  // namespace

struct Tokenizer::Parts {
  Parts(const json& file, const std::string& where)
      : cutter(part(file, "pre_tokenizer"), where),
        merges(part(file, "model"), where),
        composing(composes(part(file, "normalizer"), where)) {
    for (const auto& [bytes, id] : merges.vocabulary()) put(id, bytes);
    const json list = part(file, "added_tokens");
    require(list.is_null() || list.is_array(), Failure::input, "{}: 'added_tokens' must be a list",
            where);
    for (const json& token : list) add(token, where);
  }

  void add(const json& token, const std::string& where) {
    const json content = token.is_object() ? token.value("content", json()) : json();
    const json id = token.is_object() ? token.value("id", json()) : json();
    require(content.is_string() && id.is_number_integer() && id >= 0 && id < 1 << 24,
            Failure::input, "{}: an added token has no content or no id", where);
    const auto text = content.get<std::string>();
    const auto has = [&](const char* key) { return token.value(key, json()) == true; };
    require(!has("single_word"), Failure::input,
            "{}: the added token '{}' has single_word, which is not supported", where, text);
    const auto number = id.get<std::int32_t>();
    put(number, text);
    ids.insert_or_assign(text, number);
    const bool after = has("normalized");
    (after ? normalized : raw)
        .add({after && composing ? composed(text) : text, number, has("lstrip"), has("rstrip")});
  }

  void put(std::int32_t id, const std::string& bytes) {
    if (texts.size() <= std::size_t(id)) texts.resize(std::size_t(id) + 1);
    texts[std::size_t(id)] = bytes;
  }

  /// Calls `use` with what lies between added tokens, and appends those.
  template <class Use>
  static void between(const AddedTokens& added, std::string_view text,
                      std::vector<std::int32_t>& tokens, const Use& use) {
    while (!text.empty()) {
      const AddedTokens::Found next = added.find(text);
      if (next.begin > 0) use(text.substr(0, next.begin));
      if (next.bytes == 0) return;
      tokens.push_back(next.id);
      text.remove_prefix(next.begin + next.bytes);
    }
  }

  Cutter cutter;
  Merges merges;
  bool composing;
  AddedTokens raw, normalized;  ///< looked for before and after the text is normalized
  ByText<std::int32_t> ids;     ///< of added tokens
  std::vector<std::optional<std::string>> texts;  ///< bytes of each id
};

Tokenizer::Tokenizer(const fs::path& path) {
  const std::string name = file_of(path).string();
  const json file = deck::load_json(name, most_file_bytes);
  require(file.is_object() && file.contains("model"), Failure::input,
          "{}: is no tokenizer.json: it has no 'model'", name);
  parts_ = std::make_unique<Parts>(file, name);
}

Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

void Tokenizer::encode(std::string_view text, std::vector<std::int32_t>& tokens) {
  Parts& parts = *parts_;
  const auto pieces = [&](std::string_view plain) {
    parts.cutter.cut(plain, [&](std::string_view piece) { parts.merges.encode(piece, tokens); });
  };
  const auto normalized = [&](std::string_view plain) {
    const std::string form = parts.composing ? composed(plain) : std::string();
    Parts::between(parts.normalized, parts.composing ? form : plain, tokens, pieces);
  };
  Parts::between(parts.raw, with_valid_utf8(text), tokens, normalized);
}

std::string Tokenizer::decode(std::span<const std::int32_t> tokens) const {
  std::string text;
  for (const std::int32_t token : tokens) {
    require(token >= 0 && token < vocab_size() && parts_->texts[std::size_t(token)], Failure::input,
            "token {} is none of the tokenizer's", token);
    text += *parts_->texts[std::size_t(token)];
  }
  return text;
}

int Tokenizer::vocab_size() const { return int(parts_->texts.size()); }

std::optional<std::int32_t> Tokenizer::find(std::string_view token) const {
  const auto found = parts_->ids.find(token);
  return found == parts_->ids.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace brume::tokenizer
