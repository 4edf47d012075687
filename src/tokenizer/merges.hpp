/// @file Byte-pair encoding of one piece.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "scheme.hpp"

namespace brume::tokenizer {

struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>{}(text);
  }
};
template <class Value>
using ByText = std::unordered_map<std::string, Value, TextHash, std::equal_to<>>;

/// The vocabulary, and which two neighbours become one token, the lowest rank first. A piece begins
/// as its bytes; with byte fallback as its characters, and the bytes of those that are no token.
class Merges {
 public:
  /// @param model  of a tokenizer.json
  /// @throws Error(input) for a model of another kind, or with options that are not supported
  Merges(const nlohmann::json& model, const std::string& where);

  /// Appends the tokens of a piece.
  void encode(std::string_view piece, std::vector<std::int32_t>& tokens);

  /// The id of a word of the vocabulary, as the file has it.
  std::optional<std::int32_t> find(const std::string& word) const;

  /// Tokens by their bytes; with byte fallback by their words, as the file has them.
  const ByText<std::int32_t>& vocabulary() const { return ids_; }
  bool byte_fallback() const { return byte_fallback_; }
  /// Where byte fallback writes bytes as words: the byte that a word stands for.
  std::optional<char> byte_of(std::string_view word) const;

 private:
  struct Merge {
    std::int32_t rank, id;
  };
  struct Symbol {
    std::int32_t id;
    int previous, next;  ///< places in the piece; below 0: none
  };
  struct Candidate {
    std::int32_t rank;
    int at;  ///< of the left symbol
    std::int32_t left, right, id;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };

  void read_vocabulary(const nlohmann::json& model, const std::string& where);
  std::string written(const std::string& word) const;
  void read_bytes(const std::string& where);
  void read_merges(const nlohmann::json& model, const std::string& where);
  void encode_word(std::string_view word, std::vector<std::int32_t>& tokens);
  void merge(std::string_view word, std::vector<std::int32_t>& tokens);
  void add_symbol(std::int32_t id);
  void consider(int at);

  ByText<std::int32_t> ids_;
  std::array<std::int32_t, 256> bytes_{};
  std::unordered_map<std::uint64_t, Merge> merges_;  ///< by left << 32 | right
  bool whole_first_ = false;                         ///< a piece that is a token needs no merges
  bool byte_fallback_ = false;
  bool words_begin_with_spaces_ = false;   ///< no token has a space behind another character
  ByText<std::vector<std::int32_t>> met_;  ///< the tokens of words that came before
  std::vector<Symbol> symbols_;            ///< of the present word
  std::vector<Candidate> heap_;            ///< the first one on top
};

}  // namespace brume::tokenizer
