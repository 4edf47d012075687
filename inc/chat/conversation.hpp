/// @file Conversations as texts, by the chat template of a model.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "chat/template.hpp"

namespace brume::chat {

/// A message of a conversation.
nlohmann::ordered_json message(const char* role, const std::string& content);

/// The text of a conversation, and the parts of it that a model answers with.
struct Conversation {
  std::string text;
  std::vector<Span> answers;  ///< ascending, apart
};

/// Writes conversations as a model was taught to read them.
///
/// A conversation is an object of JSON, as OpenAI-compatible servers take it: "messages", a list of
/// objects with a "role" and mostly a "content", and, if there are any, "tools", "documents" and
/// "chat_template_kwargs", whose keys are variables of the template.
class Writer {
 public:
  /// @param folder  of the tokenizer, with tokenizer_config.json for the texts of special tokens;
  ///                empty: there are none
  /// @param file    the template; empty: chat_template.jinja of that folder, or the template in
  ///                tokenizer_config.json
  /// @throws Error(input) where there is no template, or it is none
  explicit Writer(const std::filesystem::path& folder, const std::filesystem::path& file = {});

  /// The text that a model answers. @param where  the conversation, for messages
  /// @throws Error(input)
  std::string prompt(const nlohmann::ordered_json& conversation, const std::string& where) const;

  /// Texts to learn all answers of the role "assistant" from, except answers with a "weight" of 0.
  /// The template says by `generation` blocks which text a model answers with; without these, an
  /// answer is the text behind the prompt of the messages before it. A template may write earlier
  /// answers otherwise than the last one, for example without their reasoning: then each answer has
  /// a text of its own.
  /// @throws Error(input)
  std::vector<Conversation> texts(const nlohmann::ordered_json& conversation,
                                  const std::string& where) const;

  /// The text of a conversation whose messages from number `first` on are one answer.
  /// @throws Error(input) also where the template writes the messages before otherwise without it
  Conversation answer(const nlohmann::ordered_json& conversation, std::size_t first,
                      const std::string& where) const;

  /// Replaces the text of a special token, for example "eos_token".
  void set_token(const char* name, const std::string& text) { tokens_[name] = text; }
  /// A text that differs where templates or special tokens do.
  std::string identity() const;
  /// The token that ends a text; empty: none is known.
  std::string end_token() const { return tokens_.value("eos_token", ""); }

 private:
  std::vector<Span> learned(const nlohmann::ordered_json& conversation,
                            const std::vector<Span>& generated, const std::string& where) const;
  Rendered render(const nlohmann::ordered_json& conversation, std::size_t messages, bool asks,
                  const std::string& where) const;

  nlohmann::ordered_json tokens_;  ///< special tokens, by the names of the template's variables
  std::vector<std::pair<std::string, Template>> templates_;  ///< names, and "" for the default
  std::string sources_;
};

}  // namespace brume::chat
