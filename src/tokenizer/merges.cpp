#include "merges.hpp"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.hpp"
#include "byte_letters.hpp"
#include "json_text.hpp"
#include "unicode.hpp"

namespace brume::tokenizer {
namespace {

using nlohmann::json;

constexpr std::size_t most_met = 1 << 18;  // words
constexpr std::size_t longest_met = 64;    // bytes

const json& at(const json& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  require(found != object.end(), Failure::input, "{}: model has no '{}'", where, key);
  return *found;
}

std::uint64_t pair(std::int32_t left, std::int32_t right) {
  return std::uint64_t(left) << 32 | std::uint64_t(right);
}

/// Both sides of a merge, which is a list of two words or one text with a space between them.
std::pair<std::string, std::string> sides(const json& merge, std::size_t rank,
                                          const std::string& where) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  const std::string text = merge.is_string() ? merge.get<std::string>() : "";
  const std::size_t space = text.find(' ');
  require(space != std::string::npos, Failure::input, "{}: merge {} is no pair of words", where,
          rank);
  return {text.substr(0, space), text.substr(space + 1)};
}

}  // namespace

Merges::Merges(const json& model, const std::string& where) {
  require(model.is_object() && model.value("type", json("BPE")) == "BPE", Failure::input,
          "{}: the model must be of type BPE, found {:.200}", where,
          model.is_object() ? model.value("type", json()).dump() : "none");
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const json value = model.value(key, json());
    const bool off = value.is_null() || value == "" || value == false || value == 0.0;
    require(off, Failure::input, "{}: a model with {} = {:.200} is not supported", where, key,
            value.dump());
  }
  byte_fallback_ = model.value("byte_fallback", json()) == true;
  whole_first_ = model.value("ignore_merges", json()) == true;
  read_vocabulary(model, where);
  read_merges(model, where);
}

void Merges::read_vocabulary(const json& model, const std::string& where) {
  const json& vocabulary = at(model, "vocab", where);
  require(vocabulary.is_object(), Failure::input, "{}: 'vocab' must be an object", where);
  for (const auto& [word, id] : vocabulary.items()) {
    require(is_id(id), Failure::input, "{}: token '{:.200}' has the id {:.200}, expected 0 to {}",
            where, word, id.dump(), most_ids - 1);
    ids_.emplace(written(word), id.get<std::int32_t>());
  }
  read_bytes(where);
  words_begin_with_spaces_ = byte_fallback_ && std::ranges::all_of(ids_, [](const auto& entry) {
                               std::string_view word = entry.first;
                               while (word.starts_with(written_space))
                                 word.remove_prefix(written_space.size());
                               return word.find(written_space) == std::string_view::npos;
                             });
}

/// A word as `ids_` has it.
std::string Merges::written(const std::string& word) const {
  return byte_fallback_ ? word : bytes_of(word).value_or(word);
}

std::optional<std::int32_t> Merges::find(const std::string& word) const {
  const auto found = ids_.find(written(word));
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

void Merges::read_bytes(const std::string& where) {
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto found =
        ids_.find(byte_fallback_ ? fmt::format("<0x{:02X}>", byte) : std::string(1, char(byte)));
    require(found != ids_.end(), Failure::input,
            "{}: its vocabulary has no token for the byte {:#04x}, which one that is byte-level or "
            "has byte_fallback needs",
            where, byte);
    bytes_[byte] = found->second;
  }
}

std::optional<char> Merges::byte_of(std::string_view word) const {
  const auto id = ids_.find(word);
  const auto byte = id == ids_.end() ? bytes_.end() : std::ranges::find(bytes_, id->second);
  return byte == bytes_.end() ? std::nullopt : std::optional(char(byte - bytes_.begin()));
}

void Merges::read_merges(const json& model, const std::string& where) {
  const json& merges = at(model, "merges", where);
  require(merges.is_array() && merges.size() < std::size_t(most_ids), Failure::input,
          "{}: 'merges' must be a list", where);
  const auto id = [&](const std::string& word, std::size_t rank) {
    const auto found = ids_.find(word);
    require(found != ids_.end(), Failure::input, "{}: merge {} has a word outside the vocabulary",
            where, rank);
    return found->second;
  };
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    auto [left, right] = sides(merges[rank], rank, where);
    left = written(left);
    right = written(right);
    merges_.insert_or_assign(pair(id(left, rank), id(right, rank)),
                             Merge{std::int32_t(rank), id(left + right, rank)});
  }
}

void Merges::encode(std::string_view piece, std::vector<std::int32_t>& tokens) {
  const auto whole = whole_first_ ? ids_.find(piece) : ids_.end();
  if (whole != ids_.end()) return tokens.push_back(whole->second);
  if (!words_begin_with_spaces_) return encode_word(piece, tokens);
  // No merge reaches from a word over the spaces before the next one.
  const auto is_space = [&](std::size_t at) { return piece.substr(at).starts_with(written_space); };
  std::size_t begin = 0, at = 0;
  while (at < piece.size()) {
    while (at < piece.size() && is_space(at)) at += written_space.size();
    at = std::min(piece.find(written_space, at), piece.size());
    encode_word(piece.substr(begin, at - begin), tokens);
    begin = at;
  }
}

void Merges::encode_word(std::string_view word, std::vector<std::int32_t>& tokens) {
  if (const auto known = met_.find(word); known != met_.end()) {
    tokens.insert(tokens.end(), known->second.begin(), known->second.end());
    return;
  }
  const std::size_t before = tokens.size();
  merge(word, tokens);
  if (word.size() <= longest_met && met_.size() < most_met)
    met_.emplace(word, std::vector(tokens.begin() + std::ptrdiff_t(before), tokens.end()));
}

/// Makes the pair that begins at a symbol a candidate, if a merge has it.
void Merges::consider(int at) {
  if (at < 0 || symbols_[at].next < 0) return;
  const std::int32_t left = symbols_[at].id;
  const std::int32_t right = symbols_[symbols_[at].next].id;
  const auto found = merges_.find(pair(left, right));
  if (found == merges_.end()) return;
  heap_.push_back({found->second.rank, at, left, right, found->second.id});
  std::ranges::push_heap(heap_, std::greater{});
}

void Merges::add_symbol(std::int32_t id) {
  const int last = int(symbols_.size()) - 1;
  if (last >= 0) symbols_.back().next = last + 1;
  symbols_.push_back({id, last, -1});
}

void Merges::merge(std::string_view word, std::vector<std::int32_t>& tokens) {
  if (word.empty()) return;
  require(word.size() < std::size_t(std::numeric_limits<int>::max()), Failure::input,
          "a text of {} bytes without a space is too long", word.size());
  symbols_.clear();
  heap_.clear();
  for (std::string_view rest = word; !rest.empty();) {
    const std::string_view next = rest.substr(0, byte_fallback_ ? character_bytes(rest) : 1);
    rest.remove_prefix(next.size());
    const auto known = byte_fallback_ ? ids_.find(next) : ids_.end();
    if (known != ids_.end())
      add_symbol(known->second);
    else
      for (const char c : next) add_symbol(bytes_[static_cast<unsigned char>(c)]);
  }
  for (int i = 0; i < int(symbols_.size()); ++i) consider(i);
  while (!heap_.empty()) {
    std::ranges::pop_heap(heap_, std::greater{});
    const Candidate best = heap_.back();
    heap_.pop_back();
    Symbol& left = symbols_[best.at];
    if (left.id != best.left || left.next < 0) continue;  // merged since
    Symbol& right = symbols_[left.next];
    if (right.id != best.right) continue;
    left.id = best.id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols_[left.next].previous = best.at;
    consider(left.previous);
    consider(best.at);
  }
  for (int i = 0; i >= 0; i = symbols_[i].next) tokens.push_back(symbols_[i].id);
}

}  // namespace brume::tokenizer
