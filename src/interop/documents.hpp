/// @file Text as documents of tokens, a piece of a file at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/conversation.hpp"
#include "conversation_lines.hpp"
#include "interop/tokens.hpp"
#include "tokenizer/tokenizer.hpp"

namespace brume::interop {

/// A part of a file: whole lines of JSON, each of them a document, or a part of a text, which is
/// one document.
struct TextPiece {
  std::filesystem::path path;
  bool lines = false;
  bool of_list = false;             ///< the lines are entries of a list
  std::int64_t first_line = 1;      ///< the number of the first line
  std::size_t before = 0;           ///< bytes that are the end of the piece before
  bool begins = true, ends = true;  ///< ... of the file
  std::string text;
  std::int64_t done = 0;  ///< bytes of all files that were read up to its end
};

/// Turns text into tokens: those of a tokenizer, or its bytes. For one thread at a time.
class Encoder {
 public:
  /// @throws Error(input)
  explicit Encoder(const PackOptions& options);

  /// The documents of a piece, or what it adds to one.
  /// @throws Error(input) for a line without a text
  std::vector<TokenDocument> encode(const TextPiece& piece);

  /// Whether a line is an object of JSON that `encode` takes as a document.
  /// @param any_object  any object is taken, though `encode` may refuse it
  bool takes(std::string_view line, bool any_object) const;

  /// The last place behind `from` before which, with what follows, a text has the tokens that it
  /// has alone: it may be encoded in two parts. The text around a place decides; 0: none was found.
  std::size_t last_cut(std::string_view text, std::size_t from);

  /// Where the text begins that a piece behind a cut has as `before`.
  static std::size_t context_begin(std::string_view text, std::size_t cut);

  int vocab_size() const { return tokenizer_ ? tokenizer_->vocab_size() : 256; }

 private:
  TokenDocument part(const TextPiece& piece);
  TokenDocument document(std::string_view prompt, std::string_view text);
  /// Appends the documents of a line.
  void line(std::string_view line, const std::string& where, std::vector<TokenDocument>& documents);
  void pair(const ordered_json& object, const std::string& where,
            std::vector<TokenDocument>& documents);
  chat::Writer& writer(const std::string& where, bool has_text);
  TokenDocument conversation(const chat::Conversation& conversation);
  /// @return tokens of the prompt
  std::int64_t append(std::string_view prompt, std::string_view text,
                      std::vector<std::int32_t>& tokens);

  std::string field_;
  PackOptions options_;
  std::optional<chat::Writer> chat_;  ///< made for the first conversation
  std::optional<tokenizer::Tokenizer> tokenizer_;
  std::optional<std::int32_t> begin_, end_;
};

}  // namespace brume::interop
