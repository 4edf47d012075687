#include "sentence_piece.hpp"

#include <sentencepiece_processor.h>

#include <exception>
#include <string>
#include <string_view>

#include "base/error.hpp"
#include "base/files.hpp"
#include "unicode.hpp"

namespace brume::tokenizer {
namespace {

constexpr std::int64_t most_model_bytes = std::int64_t{1} << 28;

/// Why the library does not take a model; empty where it does. It throws where it cannot make its
/// table of pieces, as of one that begins with a zero byte.
std::string refusal(sentencepiece::SentencePieceProcessor& model, std::string_view content) {
  try {
    const auto status = model.LoadFromSerializedProto(content);
    if (!status.ok()) return status.ToString();
  } catch (const std::exception& error) {
    return error.what();
  }
  return model.GetPieceSize() > 0 ? "" : "it has no pieces";
}

/// The byte that a piece <0x41> stands for.
char byte_of(const std::string& piece) { return char(std::stoi(piece.substr(3, 2), nullptr, 16)); }

}  // namespace

SentencePiece::SentencePiece(const std::filesystem::path& path)
    : model_(std::make_unique<sentencepiece::SentencePieceProcessor>()) {
  const std::string name = path.string();
  const Bytes content = read_file(path, Failure::input, most_model_bytes, Links::follow);
  const std::string why = refusal(*model_, as_text(content));
  require(why.empty(), Failure::input, "{}: is no model of SentencePiece: {}", name, why);
  for (int id = 0; id < model_->GetPieceSize(); ++id) {
    const std::string& piece = model_->IdToPiece(id);
    const bool special = model_->IsControl(id) || model_->IsUnknown(id);
    if (special) added_.insert(id), special_.insert(id);
    put(id, model_->IsByte(id) ? std::string(1, byte_of(piece))
            : special          ? piece
                               : replaced(piece, written_space, " "));
  }
  for (const CompanionToken& token : companion_tokens(path.parent_path())) {
    if (model_->IdToPiece(model_->PieceToId(token.content)) == token.content) continue;
    add_unknown(token, name);
    if (!token.id) continue;
    require(!has(*token.id), Failure::input, "{}: gives '{:.200}' the id {}, which {} has already",
            token.where, token.content, *token.id, name);
    put(*token.id, token.content);
    added_.insert(*token.id), special_.insert(*token.id);
    beside_.emplace(token.content, *token.id);
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
  if (const auto found = beside_.find(token); found != beside_.end()) return found->second;
  const int id = model_->PieceToId(token);
  return model_->IdToPiece(id) == token && is_added(id) ? std::optional(id) : std::nullopt;
}

}  // namespace brume::tokenizer
