/// @file What all ways from text to tokens have in common.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "added_tokens.hpp"
#include "companion_tokens.hpp"

namespace brume::tokenizer {

/// How vocabularies of SentencePiece write a space.
inline constexpr std::string_view written_space = "\u2581";

/// A vocabulary, and how text becomes tokens of it.
class Scheme {
 public:
  virtual ~Scheme() = default;
  virtual void encode(std::string_view text, std::vector<std::int32_t>& tokens) = 0;
  /// The id of an added token by its text.
  virtual std::optional<std::int32_t> find(std::string_view token) const = 0;

  /// What a token stands for. @throws Error(input) for one that is none
  const std::string& text(std::int32_t token) const;
  int vocab_size() const { return int(texts_.size()); }
  bool has(std::int32_t id) const;
  bool is_added(std::int32_t token) const { return added_.contains(token); }
  /// Whether it has a task, such as to end a text, and stands for no text.
  bool is_special(std::int32_t token) const { return special_.contains(token); }
  bool drops_space() const { return drops_space_; }  ///< that a decoded text begins with
  /// Whether encoding puts such a space behind added tokens too.
  bool spaces_after_added() const { return spaces_after_added_; }

  /// Refuses a text with a token that only files beside this one's know. @throws Error(input)
  void require_known(std::string_view text) const;

 protected:
  void put(std::int32_t id, const std::string& bytes);
  /// Takes a token that cannot be made of text here. @param whole  the tokenizer's file
  void add_unknown(const CompanionToken& token, const std::string& whole);

  std::set<std::int32_t> added_, special_;
  bool drops_space_ = false;
  bool spaces_after_added_ = false;

 private:
  std::vector<std::optional<std::string>> texts_;  ///< bytes of each id
  AddedTokens unknown_;                            ///< numbered as ...
  std::vector<std::string> refusals_;
};

}  // namespace brume::tokenizer
