/// @file Text files as documents of tokens, a part of a file at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "interop/tokens.hpp"
#include "tokenizer/tokenizer.hpp"

namespace brume::interop {

/// A text file, which is one document, or those lines of JSON that begin in bytes [first, end) of a
/// file.
struct TextPart {
  std::filesystem::path path;
  bool lines = false;
  std::int64_t first = 0, end = 0;
};

/// The files in order, directories walked in name order; long files of lines are several parts.
struct TextParts {
  std::vector<TextPart> parts;
  std::int64_t bytes = 0;
  std::int64_t left_out = 0;                   ///< files of directories that are no text
  std::vector<std::filesystem::path> no_text;  ///< files that were named, but are none either
};
/// @throws Error(input) for a file that is not there
TextParts text_parts(const std::vector<std::filesystem::path>& files);

/// Turns text into tokens: those of a tokenizer, or its bytes. For one thread at a time.
class Encoder {
 public:
  /// @throws Error(input)
  explicit Encoder(const PackOptions& options);

  /// Documents without a text to learn are left out.
  /// @throws Error(input) for a file that cannot be read, or a line without a text
  std::vector<TokenDocument> encode(const TextPart& part);

  int vocab_size() const { return tokenizer_ ? tokenizer_->vocab_size() : 256; }

 private:
  TokenDocument document(std::string_view prompt, std::string_view text);
  TokenDocument line(std::string_view line, const std::string& where);
  void append(std::string_view text, std::vector<std::int32_t>& tokens);

  std::string field_;
  std::optional<tokenizer::Tokenizer> tokenizer_;
  std::optional<std::int32_t> begin_, end_;
};

}  // namespace brume::interop
