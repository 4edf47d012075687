#include "interop/tokens.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/error.hpp"
#include "base/files.hpp"
#include "data/token_file.hpp"
#include "deck/json.hpp"
#include "tokenizer/tokenizer.hpp"

namespace brume::interop {
namespace {

namespace fs = std::filesystem;

/// A document's tokens, of which those before `given` are not to be learned.
struct Packed {
  std::vector<std::int32_t> tokens;
  std::int64_t given = 0;
};

/// What one token file will hold.
struct Stream {
  std::vector<std::int32_t> tokens;
  data::DocumentEnds documents;

  /// A part of a document whose first `given` tokens are not to be learned.
  void add(std::span<const std::int32_t> part, std::int64_t given, bool begins) {
    const std::int64_t first = std::ssize(tokens);
    tokens.insert(tokens.end(), part.begin(), part.end());
    if (begins) {
      documents.ends.emplace_back();
      documents.answers.push_back(first);
    }
    documents.ends.back() = std::ssize(tokens);
    if (given > 0) documents.answers.back() = first + std::min(given, std::ssize(part));
  }

  void write(const fs::path& path, int vocab_size, bool any_given) {
    if (!any_given) documents.answers.clear();
    data::write_token_file(path, tokens, vocab_size, documents);
  }
};

/// Deals documents out to two streams, block by block. Where a stream goes on with another part of
/// the text than it had before, a document ends.
class Dealer {
 public:
  Dealer(double valid_ratio, int block_tokens)
      : ratio_(valid_ratio), block_(std::size_t(block_tokens)) {}

  void add(const Packed& document) {
    any_given = any_given || document.given > 0;
    std::span<const std::int32_t> tokens = document.tokens;
    std::int64_t given = document.given;
    const Stream* before = nullptr;
    while (!tokens.empty()) {
      const std::size_t part = std::min(tokens.size(), block_ - filled_);
      Stream& stream = held_out() ? valid : train;
      stream.add(tokens.first(part), given, &stream != before);
      before = &stream;
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

  double ratio_;
  std::size_t block_;
  std::size_t filled_ = 0;  ///< tokens in the present block
  double blocks_ = 0;       ///< blocks before it
};

/// Whether a file begins as no text does: with a zero byte in its first 4 KiB.
bool is_binary(const fs::path& path) {
  std::array<char, 4096> start{};
  std::ifstream file(path, std::ios::binary);
  file.read(start.data(), std::ssize(start));
  return std::ranges::count(std::span(start).first(std::size_t(file.gcount())), '\0') > 0;
}

/// Turns documents into tokens: those of a tokenizer, or their bytes.
class Packer {
 public:
  explicit Packer(const PackOptions& options)
      : dealer(options.valid_ratio, options.block_tokens), field_(options.field) {
    if (!options.tokenizer.empty()) tokenizer_.emplace(options.tokenizer);
    if (options.end.empty()) return;
    if (tokenizer_) end_ = tokenizer_->find(options.end);
    require(end_.has_value(), Failure::input,
            "{}: has no added token '{}' that could end documents",
            tokenizer_ ? options.tokenizer.string() : "bytes without a tokenizer", options.end);
  }

  int vocab_size() const { return tokenizer_ ? tokenizer_->vocab_size() : 256; }

  void add_path(const fs::path& path) {
    try {
      if (fs::is_directory(path)) return add_directory(path);
      require(fs::is_regular_file(path), Failure::input, "{}: no such file", path.string());
    } catch (const fs::filesystem_error& error) {
      throw Error(Failure::input, "{}: cannot be read: {}", path.string(), error.code().message());
    }
    const Bytes content =
        read_file(path, Failure::input, std::numeric_limits<std::int64_t>::max(), Links::follow);
    if (path.extension() == ".jsonl")
      add_lines(as_text(content), path.string());
    else
      add_document("", as_text(content));
  }

  Dealer dealer;
  std::int64_t documents = 0;
  std::int64_t bytes = 0;
  std::int64_t left_out = 0;  ///< files of directories that are no text

 private:
  void add_directory(const fs::path& directory) {
    std::vector<fs::path> entries;
    for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
      const bool hidden = entry.path().filename().string().starts_with('.');
      // A linked directory may lead back here; pipes and devices have no end.
      const bool walked = entry.is_regular_file() || (entry.is_directory() && !entry.is_symlink());
      if (!hidden && walked) entries.push_back(entry.path());
    }
    std::ranges::sort(entries);
    for (const fs::path& entry : entries)
      if (fs::is_regular_file(entry) && is_binary(entry))
        ++left_out;
      else
        add_path(entry);
  }

  void add_lines(std::string_view text, const std::string& name) {
    for (std::int64_t number = 1; !text.empty(); ++number) {
      const std::string_view line = text.substr(0, text.find('\n'));
      text.remove_prefix(std::min(line.size() + 1, text.size()));
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      const std::string where = fmt::format("{}, line {}", name, number);
      const nlohmann::json object = deck::parse_json(line, where);
      const auto text_in = [&](const std::string& field) {
        const bool has = object.is_object() && object.contains(field) && object[field].is_string();
        return has ? object[field].get_ptr<const std::string*>() : nullptr;
      };
      if (const std::string* const whole = text_in(field_)) {
        add_document("", *whole);
        continue;
      }
      const std::string* const prompt = text_in("prompt");
      const std::string* const completion = text_in("completion");
      require(prompt && completion, Failure::input,
              "{}: has no text in the field '{}', nor a prompt with its completion: name another "
              "field with --field",
              where, field_);
      add_document(*prompt, *completion);
    }
  }

  /// A text, behind one that is given and not to be learned.
  void add_document(std::string_view prompt, std::string_view text) {
    if (text.empty()) return;
    document_.tokens.clear();
    append(prompt);
    document_.given = std::ssize(document_.tokens);
    append(text);
    if (end_) document_.tokens.push_back(*end_);
    dealer.add(document_);
    ++documents;
    bytes += std::ssize(prompt) + std::ssize(text);
  }

  void append(std::string_view text) {
    if (tokenizer_)
      tokenizer_->encode(text, document_.tokens);
    else
      for (const char c : text) document_.tokens.push_back(static_cast<unsigned char>(c));
  }

  std::string field_;
  std::optional<tokenizer::Tokenizer> tokenizer_;
  std::optional<std::int32_t> end_;
  Packed document_;  ///< the present one
};

}  // namespace

PackedText pack_text(const std::vector<fs::path>& files, const fs::path& directory,
                     const PackOptions& options) {
  require(options.valid_ratio >= 0.0 && options.valid_ratio < 1.0, Failure::input,
          "the share held out must be in 0..1, below 1, found {}", options.valid_ratio);
  require(options.block_tokens >= 1, Failure::input, "a block must have at least 1 token, found {}",
          options.block_tokens);
  Packer packer(options);
  for (const fs::path& path : files) packer.add_path(path);
  Dealer& dealer = packer.dealer;
  require(!dealer.train.tokens.empty() || !dealer.valid.tokens.empty(), Failure::input,
          "the files to pack hold no text");

  make_directory(directory);
  PackedText packed{.documents = packer.documents,
                    .bytes = packer.bytes,
                    .train_tokens = std::ssize(dealer.train.tokens),
                    .valid_tokens = std::ssize(dealer.valid.tokens),
                    .train = directory / "train.tok",
                    .valid = directory / "valid.tok",
                    .left_out = packer.left_out};
  dealer.train.write(packed.train, packer.vocab_size(), dealer.any_given);
  dealer.valid.write(packed.valid, packer.vocab_size(), dealer.any_given);
  return packed;
}

}  // namespace brume::interop
