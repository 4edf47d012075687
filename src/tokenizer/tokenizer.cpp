#include "tokenizer/tokenizer.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "added_tokens.hpp"
#include "base/error.hpp"
#include "companion_tokens.hpp"
#include "cutter.hpp"
#include "deck/json.hpp"
#include "json_text.hpp"
#include "merges.hpp"
#include "normalizer.hpp"
#include "scheme.hpp"
#include "sentence_piece.hpp"
#include "unicode.hpp"

namespace brume::tokenizer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t most_file_bytes = std::size_t{1} << 28;

fs::path file_of(const fs::path& path) {
  std::error_code none;
  if (!fs::is_directory(path, none)) return path;
  const std::optional<fs::path> found = find_tokenizer(path);
  require(found.has_value(), Failure::input,
          "{}: has no tokenizer: expected tokenizer.json, tokenizer.model or spiece.model",
          path.string());
  return *found;
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

/// What a tokenizer.json says, and files beside it.
class JsonScheme : public Scheme {
 public:
  JsonScheme(const json& file, const std::string& where,
             const std::vector<CompanionToken>& companions)
      : normalizer(part(file, "normalizer"), where),
        cutter(part(file, "pre_tokenizer"), where),
        merges(part(file, "model"), where) {
    drops_space_ = merges.byte_fallback() && drops_first_space(part(file, "decoder"));
    require(cutter.byte_level() != merges.byte_fallback(), Failure::input,
            "{}: only models with a pre_tokenizer ByteLevel, or else with byte_fallback, are "
            "supported",
            where);
    for (const auto& [word, id] : merges.vocabulary()) put(id, bytes_of_word(word));
    json list = part(file, "added_tokens");
    require(list.is_null() || list.is_array(), Failure::input, "{}: 'added_tokens' must be a list",
            where);
    for (const CompanionToken& token : companions) add_companion(token, list, where);
    for (const json& token : list) add(token, where);
    cutter.cut(normalizer.apply("a"), false,
               [&](std::string_view piece) { spaces_after_added_ |= !piece.starts_with('a'); });
  }

  /// Puts a token that a file beside the tokenizer's names into the list of added ones, as
  /// Transformers does, if it is not there.
  void add_companion(const CompanionToken& token, json& list, const std::string& where) {
    std::int64_t id = merges.find(token.content).value_or(-1);  // below 0: none
    std::int64_t next = vocab_size();
    auto known = list.end();
    for (auto other = list.begin(); other != list.end(); ++other) {
      const json number = other->is_object() ? other->value("id", json()) : json();
      if (!is_id(number)) continue;  // refused by add()
      next = std::max(next, number.get<std::int64_t>() + 1);
      if (text_at(*other, "content") != token.content) continue;
      known = other;
      id = number.get<std::int64_t>();
    }
    if (id < 0 && token.id) id = next;
    require(!token.id || id == *token.id, Failure::input,
            "{}: the token '{:.200}' has another id than Transformers gives it in {}: found {}, "
            "expected {}. Correct one of the files.",
            token.where, token.content, where, token.id.value_or(-1), id);
    if (id < 0) return add_unknown(token, where);
    json made = token.token;
    made["id"] = id;
    if (known == list.end())
      list.push_back(std::move(made));
    else if (token.decides)
      *known = std::move(made);
  }

  void add(const json& token, const std::string& where) {
    const json content = token.is_object() ? token.value("content", json()) : json();
    const json id = token.is_object() ? token.value("id", json()) : json();
    require(content.is_string() && is_id(id), Failure::input,
            "{}: an added token has no content or no id", where);
    const auto text = content.get<std::string>();
    const auto has = [&](const char* key) { return token.value(key, json()) == true; };
    const auto number = id.get<std::int32_t>();
    put(number, text);
    ids.insert_or_assign(text, number);
    added_.insert(number);
    if (has("special")) special_.insert(number);
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

  void encode(std::string_view text, std::vector<std::int32_t>& tokens) override {
    const auto normalize = [&](std::string_view plain, bool first) {
      const bool same = normalizer.changes_nothing();
      const std::string form = same ? std::string() : normalizer.apply(plain);
      between(normalized, same ? plain : form, tokens, [&](std::string_view part, bool begins) {
        cutter.cut(part, first && begins,
                   [&](std::string_view piece) { merges.encode(piece, tokens); });
      });
    };
    between(raw, with_valid_utf8(text), tokens, normalize);
  }

  std::optional<std::int32_t> find(std::string_view token) const override {
    const auto found = ids.find(token);
    return found == ids.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  Normalizer normalizer;
  Cutter cutter;
  Merges merges;
  AddedTokens raw, normalized;  ///< looked for before and after the text is normalized
  ByText<std::int32_t> ids;     ///< of added tokens
};

}  // namespace

std::optional<fs::path> find_tokenizer(const fs::path& folder) {
  std::error_code none;
  for (const fs::path& place : {folder, folder / "hf"})
    for (const char* name : {"tokenizer.json", "tokenizer.model", "spiece.model"})
      if (fs::exists(place / name, none)) return place / name;
  return std::nullopt;
}

fs::path folder_of(const fs::path& path) {
  std::error_code none;
  const bool is_folder = fs::is_directory(path, none);
  const std::optional<fs::path> found = is_folder ? find_tokenizer(path) : std::optional(path);
  const fs::path folder = found ? found->parent_path() : path;
  return folder.empty() ? "." : folder;
}

Tokenizer::Tokenizer(const fs::path& path) {
  const fs::path named = file_of(path);
  if (named.extension() == ".model") {
    scheme_ = std::make_unique<SentencePiece>(named);
    return;
  }
  const std::string name = named.string();
  const json file = deck::load_json(name, most_file_bytes);
  require(file.is_object() && file.contains("model"), Failure::input,
          "{}: is no tokenizer.json: it has no 'model'", name);
  scheme_ = std::make_unique<JsonScheme>(file, name, companion_tokens(named.parent_path()));
}

Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

void Tokenizer::encode(std::string_view text, std::vector<std::int32_t>& tokens) {
  scheme_->require_known(text);
  scheme_->encode(text, tokens);
}

std::int64_t Tokenizer::encode(std::string_view prompt, std::string_view text,
                               std::vector<std::int32_t>& tokens) {
  const std::array borders{prompt.size()};
  return encode(std::string(prompt).append(text), borders, tokens).front();
}

std::vector<std::int64_t> Tokenizer::encode(std::string_view text,
                                            std::span<const std::size_t> borders,
                                            std::vector<std::int32_t>& tokens) {
  std::vector<std::int32_t> whole;
  encode(text, whole);
  const auto spell = [&](std::span<const std::int32_t> some) {
    std::string spelled;
    for (const std::int32_t token : some) spelled += scheme_->text(token);
    return spelled;
  };
  // Tokens that spell the text itself spell its beginnings, too.
  const bool spells_text = spell(whole) == text;
  const auto spelled_before = [&](std::string_view before) {
    if (spells_text) return std::string(before);
    std::vector<std::int32_t> alone;
    encode(before, alone);
    std::string spelled = spell(alone);
    // Models of SentencePiece leave a space out that a text ends with.
    if (before.ends_with(' ') && !spelled.ends_with(' ')) spelled += ' ';
    return spelled;
  };
  std::vector<std::int64_t> counts;
  for (const std::size_t border : borders) {
    const std::string spelled = spelled_before(text.substr(0, border));
    std::string_view rest = spelled;
    const auto beyond = std::ranges::find_if(whole, [&](std::int32_t token) {
      const std::string& next = scheme_->text(token);
      const bool known = rest.starts_with(next);
      if (known) rest.remove_prefix(next.size());
      return !known;
    });
    counts.push_back(beyond - whole.begin());
  }
  tokens.insert(tokens.end(), whole.begin(), whole.end());
  return counts;
}

bool Tokenizer::is_special(std::int32_t token) const { return scheme_->is_special(token); }

std::string Tokenizer::decode(std::span<const std::int32_t> tokens) const {
  std::string text;
  for (const std::int32_t token : tokens) text += scheme_->text(token);
  if (scheme_->drops_space() && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

std::string_view Tokenizer::text_within(std::int32_t token) const {
  if (!scheme_->has(token) || scheme_->is_special(token)) return {};
  return scheme_->text(token);
}

std::int64_t Tokenizer::text_bytes(std::span<const std::int32_t> tokens, std::size_t first) const {
  std::int64_t bytes = 0;
  bool begins = true;  // a text, so that a space was put there
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::string& text = scheme_->text(tokens[i]);
    const bool added = scheme_->is_added(tokens[i]);
    const bool put = begins && scheme_->drops_space() && text.starts_with(' ');
    if (i >= first && !added) bytes += std::ssize(text) - (put ? 1 : 0);
    begins = added && (begins || scheme_->spaces_after_added());
  }
  return bytes;
}

int Tokenizer::vocab_size() const { return scheme_->vocab_size(); }

std::optional<std::int32_t> Tokenizer::find(std::string_view token) const {
  return scheme_->find(token);
}

bool is_utf8(std::string_view text) { return with_valid_utf8(text) == text; }

}  // namespace brume::tokenizer
