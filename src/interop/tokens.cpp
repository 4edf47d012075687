/// @file Text packed into token files: documents dealt out to training and validation.
#include "interop/tokens.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <utility>

#include "base/error.hpp"
#include "base/files.hpp"
#include "data/token_writer.hpp"
#include "documents.hpp"
#include "interop/hugging_face.hpp"
#include "parallel_encoding.hpp"
#include "text_reader.hpp"

namespace brume::interop {
namespace {

namespace fs = std::filesystem;

/// One token file in the making.
class Stream {
 public:
  Stream(const fs::path& path, int vocab_size) : file_(path, vocab_size) {}

  /// A part of a document whose first `given` tokens are not to be learned.
  /// @param turn  the part has an answer of its own, although its document began before
  void add(std::span<const std::int32_t> part, std::int64_t given, bool begins, bool turn = false) {
    const std::int64_t first = file_.size();
    if (begins || turn) {
      end_document();
      answer_ = first;
      continues_ = turn;
    }
    if (given > 0) answer_ = first + std::min(given, std::ssize(part));
    file_.add(part);
  }

  std::int64_t size() const { return file_.size(); }

  void commit(bool any_given, bool pairs) {
    end_document();
    file_.commit(any_given, pairs);
  }

 private:
  void end_document() {
    if (answer_) file_.add_document(file_.size(), *answer_, continues_);
    answer_.reset();
  }

  data::TokenFileWriter file_;
  std::optional<std::int64_t> answer_;  ///< of the present document, if there is one
  bool continues_ = false;              ///< ... which is a part of the one before
};

/// Deals documents out to two streams, block by block. Where a stream goes on with another part of
/// the text than it had before, a document ends.
class Dealer {
 public:
  Dealer(const PackOptions& options, const PackedText& files, int vocab_size)
      : train(files.train, vocab_size),
        valid(files.valid, vocab_size),
        ratio_(options.valid_ratio),
        block_(std::size_t(options.block_tokens)) {}

  void add(const TokenDocument& document) {
    any_given = any_given || document.given > 0;
    if (document.begins) before_ = nullptr;
    if (document.whole) return add_whole(document);
    std::span<const std::int32_t> tokens = document.tokens;
    std::int64_t given = document.given;
    while (!tokens.empty()) {
      const std::size_t part = std::min(tokens.size(), block_ - filled_);
      Stream& stream = held_out() ? valid : train;
      stream.add(tokens.first(part), given, &stream != before_);
      before_ = &stream;
      tokens = tokens.subspan(part);
      given -= std::int64_t(part);
      filled_ += part;
      if (filled_ == block_) {
        filled_ = 0;
        ++blocks_;
      }
    }
  }

  Stream train, valid;
  bool any_given = false;  ///< some tokens are not to be learned

 private:
  /// Whether the next block is held out. round(n ratio) of the first n blocks are, so the spacing
  /// is as even as it can be.
  bool held_out() const {
    return std::floor((blocks_ + 1) * ratio_ + 0.5) > std::floor(blocks_ * ratio_ + 0.5);
  }

  /// A document of which no part is held out without the rest. Those that are held out have their
  /// share of the tokens of all such documents, to half a document.
  void add_whole(const TokenDocument& document) {
    const auto size = double(document.tokens.size());
    whole_ += size;
    if (!document.follows) holds_out_ = whole_held_out_ + size / 2.0 <= whole_ * ratio_;
    if (holds_out_) whole_held_out_ += size;
    Stream& stream = holds_out_ ? valid : train;
    const std::span<const std::int32_t> tokens = document.tokens;
    for (const Turn& turn : document.all_turns())
      stream.add(tokens.subspan(std::size_t(turn.begin), std::size_t(turn.end - turn.begin)),
                 turn.answer - turn.begin, turn.begin == 0, turn.begin > 0);
  }

  double ratio_;
  std::size_t block_;
  const Stream* before_ = nullptr;             ///< that has the part before of the present document
  std::size_t filled_ = 0;                     ///< tokens in the present block
  double blocks_ = 0;                          ///< blocks before it
  double whole_ = 0.0, whole_held_out_ = 0.0;  ///< tokens of documents that stay whole
  bool holds_out_ = false;                     ///< ... the last of them
};

}  // namespace

chat::Writer conversation_writer(const fs::path& path, const tokenizer::Tokenizer* tokenizer,
                                 const fs::path& file, const std::string& begin,
                                 const std::string& end) {
  const fs::path folder = path.empty() ? fs::path() : tokenizer::folder_of(path);
  chat::Writer writer(folder, file);
  if (!begin.empty()) writer.set_token("bos_token", begin);
  if (!end.empty()) writer.set_token("eos_token", end);
  if (!writer.end_token().empty() || tokenizer == nullptr) return writer;
  const std::vector<std::int32_t> ends = end_tokens(folder);
  if (!ends.empty() && ends.front() < tokenizer->vocab_size())
    writer.set_token("eos_token", tokenizer->decode(std::span(ends).first(1)));
  return writer;
}

std::vector<Turn> TokenDocument::all_turns() const {
  return turns.empty() ? std::vector<Turn>{{0, given, std::ssize(tokens)}} : turns;
}

std::int64_t TokenDocument::learned() const {
  std::int64_t sum = 0;
  for (const Turn& turn : all_turns()) sum += turn.end - turn.answer;
  return sum;
}

PackedText pack_text(const std::vector<fs::path>& files, const fs::path& directory,
                     const PackOptions& options) {
  require(options.valid_ratio >= 0.0 && options.valid_ratio < 1.0, Failure::input,
          "the share held out must be in 0..1, below 1, found {}", options.valid_ratio);
  require(options.block_tokens >= 1, Failure::input, "a block must have at least 1 token, found {}",
          options.block_tokens);
  TextReader reader(files);
  const int vocab_size = Encoder(options).vocab_size();
  PackedText packed{.train = directory / "train.tok", .valid = directory / "valid.tok"};
  make_directory(directory);
  Dealer dealer(options, packed, vocab_size);
  {
    ParallelEncoding encoding(reader, options);
    while (const std::optional<ParallelEncoding::Made> part = encoding.take()) {
      for (const TokenDocument& document : part->documents) {
        packed.unanswered += document.whole && document.answer_bytes == 0 ? 1 : 0;
        if (document.answer_bytes == 0) continue;
        require(packed.documents == 0 || packed.pairs == document.of_pair, Failure::input,
                "{}: {} pairs of a chosen and a rejected answer, unlike the text before: pack "
                "pairs and other text apart",
                part->piece.path.string(), document.of_pair ? "holds" : "holds more than");
        packed.pairs = document.of_pair;
        dealer.add(document);
        packed.documents += document.begins;
        packed.bytes += document.bytes;
        packed.learned_tokens += document.learned();
        const fs::path& path = part->piece.path;
        const bool known = !packed.replaced.empty() && packed.replaced.back() == path;
        if (document.replaced && !known) packed.replaced.push_back(path);
      }
      if (options.progress) options.progress(double(part->piece.done) / double(reader.bytes()));
    }
  }
  packed.train_tokens = dealer.train.size();
  packed.valid_tokens = dealer.valid.size();
  packed.left_out = reader.left_out();
  packed.no_text = reader.no_text();
  packed.raw_json = reader.raw_json();
  require(packed.documents > 0, Failure::input, "the files to pack hold no text");
  require(!options.field || reader.any_lines(), Failure::input,
          "--field {}: no file has lines of JSON with a text in that field",
          options.field.value_or(""));
  dealer.train.commit(dealer.any_given, packed.pairs);
  dealer.valid.commit(dealer.any_given, packed.pairs);
  return packed;
}

std::vector<TokenDocument> read_documents(const fs::path& file, const PackOptions& options) {
  Encoder encoder(options);
  TextReader reader({file});
  std::vector<TokenDocument> documents;
  while (const std::optional<TextPiece> piece = reader.next(encoder))
    for (TokenDocument& document : encoder.encode(*piece)) {
      require(!document.of_pair, Failure::input,
              "{}: holds pairs of a chosen and a rejected answer: write a 'completion' a line",
              file.string());
      if (document.begins) {
        documents.push_back(std::move(document));
        continue;
      }
      TokenDocument& whole = documents.back();
      whole.tokens.insert(whole.tokens.end(), document.tokens.begin(), document.tokens.end());
      whole.bytes += document.bytes;
      whole.answer_bytes += document.answer_bytes;
    }
  return documents;
}

}  // namespace brume::interop
