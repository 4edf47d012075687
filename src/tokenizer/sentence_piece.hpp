/// @file Models of SentencePiece (tokenizer.model, spiece.model), by its own library.
#pragma once

#include <filesystem>
#include <map>
#include <memory>

#include "scheme.hpp"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace brume::tokenizer {

/// Tokens by SentencePiece; its control symbols (<s>, </s>) are never made of text. Tokens that
/// files beside it add are known, but a text with one is refused: versions of Transformers differ
/// in how they encode the text behind it.
class SentencePiece : public Scheme {
 public:
  /// @throws Error(input) when the file cannot be read or is no such model
  explicit SentencePiece(const std::filesystem::path& path);
  ~SentencePiece() override;

  void encode(std::string_view text, std::vector<std::int32_t>& tokens) override;
  std::optional<std::int32_t> find(std::string_view token) const override;

 private:
  std::unique_ptr<sentencepiece::SentencePieceProcessor> model_;
  std::map<std::string, std::int32_t, std::less<>> beside_;  ///< tokens of files beside it
};

}  // namespace brume::tokenizer
