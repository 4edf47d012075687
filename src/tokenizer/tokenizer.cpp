#include "tokenizer/tokenizer.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "added_tokens.hpp"
#include "base/error.hpp"
#include "cutter.hpp"
#include "deck/json.hpp"
#include "json_text.hpp"
#include "merges.hpp"
#include "normalizer.hpp"
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

/// Whether decoding leaves a space out that a text begins with, because encoding put it there.
bool drops_first_space(const json& decoder) {
  const std::string type = text_at(decoder, "type"), scheme = text_at(decoder, "prepend_scheme");
  if (type == "Metaspace")
    return scheme.empty() ? is_on(decoder, "add_prefix_space") : scheme != "never";
  if (type == "Strip")
    return text_at(decoder, "content") == " " && decoder.value("start", json()) == 1;
  const json steps = type == "Sequence" ? part(decoder, "decoders") : json();
  return std::ranges::any_of(steps, drops_first_space);
}

}  // namespace

struct Tokenizer::Parts {
  Parts(const json& file, const std::string& where)
      : normalizer(part(file, "normalizer"), where),
        cutter(part(file, "pre_tokenizer"), where),
        merges(part(file, "model"), where),
        drops_space(merges.byte_fallback() && drops_first_space(part(file, "decoder"))) {
    require(cutter.byte_level() != merges.byte_fallback(), Failure::input,
            "{}: only models with a pre_tokenizer ByteLevel, or else with byte_fallback, are "
            "supported",
            where);
    for (const auto& [word, id] : merges.vocabulary()) put(id, bytes_of_word(word));
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
    const auto number = id.get<std::int32_t>();
    put(number, text);
    ids.insert_or_assign(text, number);
    added.insert(number);
    const bool after = has("normalized");
    (after ? normalized : raw)
        .add({after ? normalizer.apply(text) : text, number, has("lstrip"), has("rstrip"),
              has("single_word")});
  }

  /// What a word of the vocabulary stands for.
  std::string bytes_of_word(const std::string& word) const {
    if (!merges.byte_fallback()) return word;
    if (const std::optional<char> byte = merges.byte_of(word)) return {*byte};
    return replaced(word, written_space, " ");
  }

  const std::string& text(std::int32_t token) const {
    const bool known = token >= 0 && std::size_t(token) < texts.size();
    require(known && texts[std::size_t(token)], Failure::input,
            "token {} is none of the tokenizer's", token);
    return *texts[std::size_t(token)];
  }

  void put(std::int32_t id, const std::string& bytes) {
    if (texts.size() <= std::size_t(id)) texts.resize(std::size_t(id) + 1);
    texts[std::size_t(id)] = bytes;
  }

  /// Calls `use` with what lies between added tokens, and whether it begins the text, and appends
  /// those.
  template <class Use>
  static void between(const AddedTokens& added, std::string_view text,
                      std::vector<std::int32_t>& tokens, const Use& use) {
    for (std::size_t from = 0; from < text.size();) {
      const AddedTokens::Found next = added.find(text, from);
      if (next.begin > from) use(text.substr(from, next.begin - from), from == 0);
      if (next.bytes == 0) return;
      tokens.push_back(next.id);
      from = next.begin + next.bytes;
    }
  }

  Normalizer normalizer;
  Cutter cutter;
  Merges merges;
  bool drops_space;             ///< that a decoded text begins with
  AddedTokens raw, normalized;  ///< looked for before and after the text is normalized
  ByText<std::int32_t> ids;     ///< of added tokens
  std::set<std::int32_t> added;
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
  const auto normalized = [&](std::string_view plain, bool first) {
    const bool same = parts.normalizer.changes_nothing();
    const std::string form = same ? std::string() : parts.normalizer.apply(plain);
    Parts::between(
        parts.normalized, same ? plain : form, tokens, [&](std::string_view part, bool begins) {
          parts.cutter.cut(part, first && begins,
                           [&](std::string_view piece) { parts.merges.encode(piece, tokens); });
        });
  };
  Parts::between(parts.raw, with_valid_utf8(text), tokens, normalized);
}

std::string Tokenizer::decode(std::span<const std::int32_t> tokens) const {
  std::string text;
  for (const std::int32_t token : tokens) text += parts_->text(token);
  if (parts_->drops_space && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

std::int64_t Tokenizer::text_bytes(std::span<const std::int32_t> tokens) const {
  std::int64_t bytes = 0;
  for (const std::int32_t token : tokens)
    if (!parts_->added.contains(token)) bytes += std::ssize(parts_->text(token));
  return bytes;
}

int Tokenizer::vocab_size() const { return int(parts_->texts.size()); }

std::optional<std::int32_t> Tokenizer::find(std::string_view token) const {
  const auto found = parts_->ids.find(token);
  return found == parts_->ids.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace brume::tokenizer
