/// @file Packs text into token files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "chat/conversation.hpp"
#include "tokenizer/tokenizer.hpp"

namespace brume::interop {

struct PackOptions {
  double valid_ratio = 0.1;               ///< share held out, 0 <= valid_ratio < 1
  int block_tokens = 4096;                ///< held out together
  std::filesystem::path tokenizer = {};   ///< tokenizer.json or its folder; empty: bytes are tokens
  std::string begin = {};                 ///< the token before each document; empty: none
  std::string end = {};                   ///< the token after each document; empty: none
  std::optional<std::string> field = {};  ///< field of each JSON line, "text" unless given; a given
                                          ///< one must be in some file
  std::filesystem::path chat_template = {};   ///< file; empty: the tokenizer's own
  int threads = 0;                            ///< 0: as many as there are cores
  std::function<void(double)> progress = {};  ///< told the share of all bytes that is packed
};

/// Tokens [begin, end) of a document, of which only those from `answer` on are to be learned.
struct Turn {
  std::int64_t begin = 0, answer = 0, end = 0;
};

/// A document's tokens, of which the first `given` ones are not to be learned.
struct TokenDocument {
  std::vector<std::int32_t> tokens = {};
  std::int64_t given = 0;
  std::vector<Turn> turns = {};   ///< all turns of a conversation, in order; else none
  std::int64_t bytes = 0;         ///< bytes of its text
  std::int64_t answer_bytes = 0;  ///< ... behind what is given
  bool begins = true;             ///< it does not go on with the document before it
  bool whole = false;             ///< a conversation, or a prompt and its completion: never cut
  bool follows = false;           ///< it is held out if the document before is
  bool of_pair = false;           ///< a chosen answer, or the rejected one that follows it
  bool replaced = false;          ///< bytes of its text that are no UTF-8 became U+FFFD

  /// The turns of a conversation, or the one of another document.
  std::vector<Turn> all_turns() const;
  /// Number of tokens to be learned.
  std::int64_t learned() const;
};

struct PackedText {
  std::int64_t documents = 0;
  std::int64_t unanswered = 0;  ///< conversations, prompts and pairs without an answer, left out
  bool pairs = false;           ///< documents 2 i and 2 i + 1 are a pair of answers
  std::int64_t bytes = 0;
  std::int64_t learned_tokens = 0;
  std::int64_t train_tokens = 0;
  std::int64_t valid_tokens = 0;
  std::filesystem::path train;
  std::filesystem::path valid;
  std::int64_t left_out = 0;  ///< files of directories that are no text
  /// Files that were named, and packed, but are none.
  std::vector<std::filesystem::path> no_text = {};
  std::vector<std::filesystem::path> raw_json = {};  ///< ... named .json, packed as text
  std::vector<std::filesystem::path> replaced = {};  ///< files of which bytes became U+FFFD
};

/// The writer of conversations for a tokenizer. Special tokens have the texts that are given, or
/// that tokenizer_config.json gives them; a text ends otherwise by eos_token_id of the model's
/// files.
///
/// @param path        of the tokenizer; empty, and `tokenizer` null: tokens are bytes
/// @param file        the chat template; empty: the tokenizer's own
/// @param begin, end  bos_token and eos_token; empty: not given
/// @throws Error(input)
chat::Writer conversation_writer(const std::filesystem::path& path,
                                 const tokenizer::Tokenizer* tokenizer,
                                 const std::filesystem::path& file, const std::string& begin,
                                 const std::string& end);

/// Packs files, on all cores: the tokens of each document in the given order, cut into blocks; an
/// evenly spaced share of the blocks is held out, so both parts see every kind of text. A file is a
/// document. Where it is named .jsonl or .ndjson, or its first line is an object of JSON with the
/// field, each line is a document; where it is a list of such objects, each entry. One that has a
/// "prompt" and a "completion" instead stays whole, and the tokens of its prompt are not to be
/// learned. A conversation becomes the text that its chat template makes of it, and only
/// answers are to be learned. A "chosen" and a "rejected" answer become two documents, which all
/// lines must then do. What gzip, zstd, bzip2 or xz compressed is decompressed. Both files
/// say where documents end; one of which a part is held out ends there too. Each document is
/// tokenized as a whole; memory holds a few pieces of a few MiB a core.
///
/// @param files        read whole, in order; directories are walked in name order, without hidden
///                     files and those with a zero byte near their beginning, which are no text
/// @param directory    train.tok and valid.tok are written there, made when missing
/// @throws Error(input) for a file that cannot be read, a line of JSON without a text in its field,
///                      a field that is given for files without lines of JSON, or a tokenizer that
///                      is not supported; Error(storage) when writing fails
PackedText pack_text(const std::vector<std::filesystem::path>& files,
                     const std::filesystem::path& directory, const PackOptions& options = {});

/// The documents of a file, in order, as pack_text takes them. @throws Error(input) as that does
std::vector<TokenDocument> read_documents(const std::filesystem::path& file,
                                          const PackOptions& options);

}  // namespace brume::interop
