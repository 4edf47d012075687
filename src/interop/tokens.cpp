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

/// Deals tokens out to two streams, block by block.
class Dealer {
 public:
  Dealer(double valid_ratio, int block_tokens)
      : ratio_(valid_ratio), block_(std::size_t(block_tokens)) {}

  void add(std::span<const std::int32_t> tokens) {
    while (!tokens.empty()) {
      const std::size_t part = std::min(tokens.size(), block_ - filled_);
      std::vector<std::int32_t>& stream = held_out() ? valid : train;
      stream.insert(stream.end(), tokens.begin(), tokens.begin() + std::ptrdiff_t(part));
      tokens = tokens.subspan(part);
      filled_ += part;
      if (filled_ == block_) {
        filled_ = 0;
        ++blocks_;
      }
    }
  }

  std::vector<std::int32_t> train;
  std::vector<std::int32_t> valid;

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
      add_document(as_text(content));
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
      const bool has = object.is_object() && object.contains(field_);
      require(has && object[field_].is_string(), Failure::input,
              "{}: has no text in the field '{}': name another one with --field", where, field_);
      add_document(object[field_].get_ref<const std::string&>());
    }
  }

  void add_document(std::string_view text) {
    if (text.empty()) return;
    tokens_.clear();
    if (tokenizer_)
      tokenizer_->encode(text, tokens_);
    else
      for (const char c : text) tokens_.push_back(static_cast<unsigned char>(c));
    if (end_) tokens_.push_back(*end_);
    dealer.add(tokens_);
    ++documents;
    bytes += std::ssize(text);
  }

  std::string field_;
  std::optional<tokenizer::Tokenizer> tokenizer_;
  std::optional<std::int32_t> end_;
  std::vector<std::int32_t> tokens_;  ///< of the present document
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
  const Dealer& dealer = packer.dealer;
  require(!dealer.train.empty() || !dealer.valid.empty(), Failure::input,
          "the files to pack hold no text");

  make_directory(directory);
  PackedText packed{.documents = packer.documents,
                    .bytes = packer.bytes,
                    .train_tokens = std::ssize(dealer.train),
                    .valid_tokens = std::ssize(dealer.valid),
                    .train = directory / "train.tok",
                    .valid = directory / "valid.tok",
                    .left_out = packer.left_out};
  data::write_token_file(packed.train, dealer.train, packer.vocab_size());
  data::write_token_file(packed.valid, dealer.valid, packer.vocab_size());
  return packed;
}

}  // namespace brume::interop
