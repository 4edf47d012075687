#include "sentence_piece.hpp"

#include <sentencepiece_processor.h>

#include <string>

#include "base/error.hpp"
#include "base/files.hpp"
#include "unicode.hpp"

namespace brume::tokenizer {
namespace {

constexpr std::int64_t most_model_bytes = std::int64_t{1} << 28;

/// The byte that a piece <0x41> stands for.
char byte_of(const std::string& piece) { return char(std::stoi(piece.substr(3, 2), nullptr, 16)); }

}  // namespace

SentencePiece::SentencePiece(const std::filesystem::path& path)
    : model_(std::make_unique<sentencepiece::SentencePieceProcessor>()) {
  const std::string name = path.string();
  const Bytes content = read_file(path, Failure::input, most_model_bytes, Links::follow);
  const auto status = model_->LoadFromSerializedProto(as_text(content));
  require(status.ok() && model_->GetPieceSize() > 0, Failure::input,
          "{}: is no model of SentencePiece: {}", name, status.message());
  for (int id = 0; id < model_->GetPieceSize(); ++id) {
    const std::string& piece = model_->IdToPiece(id);
    const bool special = model_->IsControl(id) || model_->IsUnknown(id);
    if (special) added_.insert(id);
    put(id, model_->IsByte(id) ? std::string(1, byte_of(piece))
            : special          ? piece
                               : replaced(piece, written_space, " "));
  }
  // A model that puts no space before a text keeps the one that is there.
  std::vector<int> first;
  drops_space_ =
      model_->Encode("a", &first).ok() && !first.empty() && text(first.front()).starts_with(' ');
}

SentencePiece::~SentencePiece() = default;

void SentencePiece::encode(std::string_view text, std::vector<std::int32_t>& tokens) {
  std::vector<int> found;
  const auto status = model_->Encode(with_valid_utf8(text), &found);
  require(status.ok(), Failure::input, "a text cannot be encoded: {}", status.message());
  tokens.insert(tokens.end(), found.begin(), found.end());
}

std::optional<std::int32_t> SentencePiece::find(std::string_view token) const {
  const int id = model_->PieceToId(token);
  return model_->IdToPiece(id) == token && is_added(id) ? std::optional(id) : std::nullopt;
}

}  // namespace brume::tokenizer
