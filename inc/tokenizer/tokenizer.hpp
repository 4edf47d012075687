/// @file Text to tokens and back, as a tokenizer.json of Hugging Face or a model of SentencePiece
/// says.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace brume::tokenizer {

class Scheme;

/// The file of the tokenizer that is kept in a model's folder, or in the folder hf of an imported
/// one: tokenizer.json, tokenizer.model or spiece.model.
std::optional<std::filesystem::path> find_tokenizer(const std::filesystem::path& folder);

/// Byte-pair encoding, byte-level (GPT-2, Llama 3, Qwen, SmolLM, Falcon) or of characters with
/// bytes for those that are no token (Llama 2, Mistral, Gemma).
///
/// Or what a model of SentencePiece is. The ids are those of the reference library without the
/// tokens that its post-processor adds. It remembers pieces that it met, so it is for one thread at
/// a time.
class Tokenizer {
 public:
  /// @param path  a tokenizer.json, a model of SentencePiece (named .model), or a directory with
  ///              one; tokens that tokenizer_config.json, added_tokens.json and
  ///              special_tokens_map.json in the same folder add are known too
  /// @throws Error(input) when the file cannot be read, is none, or asks for what is not supported;
  ///                      the message names the file and the part
  explicit Tokenizer(const std::filesystem::path& path);
  Tokenizer(Tokenizer&& other) noexcept;
  ~Tokenizer();

  /// Appends the tokens of a text. Each part of it that is no UTF-8 counts as U+FFFD, as where
  /// Python reads a file with errors="replace".
  /// @throws Error(input) for a text with a token that another file adds to the tokenizer, if that
  ///                      file gives no id or the tokenizer is a model of SentencePiece
  void encode(std::string_view text, std::vector<std::int32_t>& tokens);

  /// Appends the tokens of a prompt and a text that follows it, which are encoded as one.
  /// @return how many of them stand for the prompt alone; one that stands for its end and more does
  ///         not
  std::int64_t encode(std::string_view prompt, std::string_view text,
                      std::vector<std::int32_t>& tokens);

  /// Appends the tokens of a text, and finds its borders among them.
  /// @param borders  first bytes of a text in valid UTF-8, each at the begin of a character
  /// @return for each border the number of tokens that stand for text before it alone
  std::vector<std::int64_t> encode(std::string_view text, std::span<const std::size_t> borders,
                                   std::vector<std::int32_t>& tokens);

  /// Whether a token has a task, such as to end a text.
  bool is_special(std::int32_t token) const;

  /// The bytes of the tokens, one after the other. @throws Error(input) for a token that is none
  std::string decode(std::span<const std::int32_t> tokens) const;

  /// The bytes of a token that others come before; none for special tokens, and for ids that are
  /// none.
  std::string_view text_within(std::int32_t token) const;

  /// Bytes of text that a document's tokens from number `first` on stand for; added tokens stand
  /// for none, and a space that encoding puts before a text does not count.
  /// @throws Error(input) for a token that is none
  std::int64_t text_bytes(std::span<const std::int32_t> tokens, std::size_t first = 0) const;

  int vocab_size() const;  ///< the largest id and 1

  /// The id of a token by its text, for example that which ends documents.
  std::optional<std::int32_t> find(std::string_view token) const;

 private:
  std::unique_ptr<Scheme> scheme_;
};

/// The folder in which a tokenizer's file lies, with those that belong to it.
/// @param path  as of Tokenizer
std::filesystem::path folder_of(const std::filesystem::path& path);

/// Whether a text is UTF-8, so that encoding it replaces nothing.
bool is_utf8(std::string_view text);

}  // namespace brume::tokenizer
