#include "merges.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.hpp"
#include "byte_letters.hpp"

namespace brume::tokenizer {
namespace {

using nlohmann::json;

constexpr std::size_t most_met = 1 << 18;   // pieces
constexpr std::size_t longest_met = 64;     // bytes
constexpr std::int64_t most_ids = 1 << 24;  // as of a model

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
          "{}: the model must be of type BPE, found {}", where,
          model.is_object() ? model.value("type", json()).dump() : "none");
  for (const char* key :
       {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"}) {
    const json value = model.value(key, json());
    const bool off = value.is_null() || value == "" || value == false || value == 0.0;
    require(off, Failure::input, "{}: a model with {} = {} is not supported", where, key,
            value.dump());
  }
  whole_first_ = model.value("ignore_merges", json()) == true;
  read_vocabulary(model, where);
  read_merges(model, where);
}

void Merges::read_vocabulary(const json& model, const std::string& where) {
  const json& vocabulary = at(model, "vocab", where);
  require(vocabulary.is_object(), Failure::input, "{}: 'vocab' must be an object", where);
  for (const auto& [word, id] : vocabulary.items()) {
    require(id.is_number_integer() && id >= 0 && id < most_ids, Failure::input,
            "{}: token '{}' has the id {}, expected 0 to {}", where, word, id.dump(), most_ids - 1);
    ids_.emplace(bytes_of(word).value_or(word), id.get<std::int32_t>());
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto found = ids_.find(std::string(1, char(byte)));
    require(found != ids_.end(), Failure::input,
            "{}: its vocabulary has no token for the byte {:#04x}, which a byte-level one needs",
            where, byte);
    bytes_[byte] = found->second;
  }
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
    left = bytes_of(left).value_or(left);
    right = bytes_of(right).value_or(right);
    merges_.insert_or_assign(pair(id(left, rank), id(right, rank)),
                             Merge{std::int32_t(rank), id(left + right, rank)});
  }
}

void Merges::encode(std::string_view piece, std::vector<std::int32_t>& tokens) {
  if (const auto known = met_.find(piece); known != met_.end()) {
    tokens.insert(tokens.end(), known->second.begin(), known->second.end());
    return;
  }
  const std::size_t before = tokens.size();
  const auto whole = whole_first_ ? ids_.find(piece) : ids_.end();
  if (whole != ids_.end())
    tokens.push_back(whole->second);
  else
    merge(piece, tokens);
  if (piece.size() <= longest_met && met_.size() < most_met)
    met_.emplace(piece, std::vector(tokens.begin() + std::ptrdiff_t(before), tokens.end()));
}

/// Makes the pair that begins at a symbol a candidate, if a merge has it.
void Merges::consider(int at) {
  if (at < 0 || symbols_[std::size_t(at)].next < 0) return;
  const std::int32_t left = symbols_[std::size_t(at)].id;
  const std::int32_t right = symbols_[std::size_t(symbols_[std::size_t(at)].next)].id;
  const auto found = merges_.find(pair(left, right));
  if (found == merges_.end()) return;
  heap_.push_back({found->second.rank, at, left, right, found->second.id});
  std::ranges::push_heap(heap_, std::greater{});
}

void Merges::merge(std::string_view piece, std::vector<std::int32_t>& tokens) {
  const int size = int(piece.size());
  symbols_.clear();
  heap_.clear();
  for (int i = 0; i < size; ++i)
    symbols_.push_back({bytes_[static_cast<unsigned char>(piece[std::size_t(i)])], i - 1,
                        i + 1 < size ? i + 1 : -1});
  for (int i = 0; i + 1 < size; ++i) consider(i);
  while (!heap_.empty()) {
    std::ranges::pop_heap(heap_, std::greater{});
    const Candidate best = heap_.back();
    heap_.pop_back();
    Symbol& left = symbols_[std::size_t(best.at)];
    if (left.id != best.left || left.next < 0) continue;  // merged since
    Symbol& right = symbols_[std::size_t(left.next)];
    if (right.id != best.right) continue;
    left.id = best.id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols_[std::size_t(left.next)].previous = best.at;
    consider(left.previous);
    consider(best.at);
  }
  for (int i = 0; i >= 0; i = symbols_[std::size_t(i)].next)
    tokens.push_back(symbols_[std::size_t(i)].id);
}

}  // namespace brume::tokenizer
