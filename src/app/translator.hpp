/// @file Between texts and a model's tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.hpp"
#include "chat/conversation.hpp"
#include "tokenizer/tokenizer.hpp"
#include "verbs.hpp"

namespace brume::app {

/// A model's tokenizer and chat template, and the tokens by which texts begin and answers end.
class Translator {
 public:
  /// @param tokenizer   file or folder; empty: tokens are bytes
  /// @param folders     in which the model's files may be, the nearest first
  /// @param vocab_size  of the model
  /// @throws Error(input)
  Translator(std::filesystem::path tokenizer, const std::vector<std::filesystem::path>& folders,
             const AnswerOptions& options, int vocab_size);

  /// Learns to read conversations. @throws Error(input) where the model has no chat template
  void read_conversations();
  const chat::Writer& conversations() const { return *chat_; }

  /// The tokens of a prompt, with the token by which texts begin unless the text is that of a
  /// conversation, which has its own. @throws Error(input) for one beyond the model's vocabulary
  std::vector<std::int32_t> encode(std::string_view text, bool conversation);
  std::string bytes_of(std::int32_t token) const;
  bool ends(std::int32_t token) const { return ends_.contains(token); }

  /// Adds what differs where an answer's tokens or text would.
  void add_to(Fnv1a& hash) const;

 private:
  std::int32_t token_of(const std::string& text, const char* option) const;

  std::filesystem::path path_;
  std::optional<tokenizer::Tokenizer> tokenizer_;  ///< none: tokens are bytes
  std::string template_file_;                      ///< empty: the tokenizer's own
  bool ends_given_;
  int vocab_size_;
  std::optional<std::int32_t> begin_;
  std::set<std::int32_t> ends_;
  std::optional<chat::Writer> chat_;
};

/// The reason why a model with so much room cannot answer a prompt of so many tokens; empty: it
/// can.
std::string refusal(std::int64_t tokens, std::int64_t room, int seq_len);

}  // namespace brume::app
