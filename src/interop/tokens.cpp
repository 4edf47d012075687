#include "interop/tokens.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

#include "base/error.hpp"
#include "base/files.hpp"
#include "data/token_file.hpp"

namespace brume::interop {
namespace {

namespace fs = std::filesystem;

/// Deals text out to two streams of tokens, block by block.
class Dealer {
 public:
  Dealer(double valid_ratio, int block_tokens) : ratio_(valid_ratio), block_(block_tokens) {}

  void add(const char* text, std::size_t bytes) {
    while (bytes > 0) {
      const std::size_t part = std::min(bytes, block_ - filled_);
      std::vector<std::uint16_t>& stream = held_out() ? valid : train;
      std::transform(text, text + part, std::back_inserter(stream),
                     [](char c) { return static_cast<unsigned char>(c); });
      text += part;
      bytes -= part;
      filled_ += part;
      if (filled_ == block_) {
        filled_ = 0;
        ++blocks_;
      }
    }
  }

  std::vector<std::uint16_t> train;
  std::vector<std::uint16_t> valid;

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

void add_file(const fs::path& path, Dealer& dealer) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> buffer(1 << 16);
  while (file.is_open() && !file.eof() && !file.bad()) {
    file.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    dealer.add(buffer.data(), static_cast<std::size_t>(file.gcount()));
    if (file.fail() && !file.eof()) break;
  }
  require(file.eof() && !file.bad(), Failure::input, "{}: cannot be read", path.string());
}

void add_path(const fs::path& path, Dealer& dealer);

void add_directory(const fs::path& directory, Dealer& dealer) {
  std::vector<fs::path> entries;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const bool hidden = entry.path().filename().string().starts_with('.');
    // A linked directory may lead back here; pipes and devices have no end.
    const bool walked = entry.is_regular_file() || (entry.is_directory() && !entry.is_symlink());
    if (!hidden && walked) entries.push_back(entry.path());
  }
  std::ranges::sort(entries);
  for (const fs::path& entry : entries) add_path(entry, dealer);
}

void add_path(const fs::path& path, Dealer& dealer) {
  try {
    if (fs::is_directory(path)) return add_directory(path, dealer);
    require(fs::is_regular_file(path), Failure::input, "{}: no such file", path.string());
  } catch (const fs::filesystem_error& error) {
    throw Error(Failure::input, "{}: cannot be read: {}", path.string(), error.code().message());
  }
  add_file(path, dealer);
}

}  // namespace

PackedText pack_bytes(const std::vector<fs::path>& files, const fs::path& directory,
                      double valid_ratio, int block_tokens) {
  require(valid_ratio >= 0.0 && valid_ratio < 1.0, Failure::input,
          "the share held out must be in 0..1, below 1, found {}", valid_ratio);
  require(block_tokens >= 1, Failure::input, "a block must have at least 1 token, found {}",
          block_tokens);
  Dealer dealer(valid_ratio, block_tokens);
  for (const fs::path& path : files) add_path(path, dealer);
  require(!dealer.train.empty() || !dealer.valid.empty(), Failure::input,
          "the files to pack hold no text");

  make_directory(directory);
  constexpr int byte_values = 256;
  PackedText packed{std::ssize(dealer.train), std::ssize(dealer.valid), directory / "train.tok",
                    directory / "valid.tok"};
  data::write_token_file(packed.train, dealer.train, byte_values);
  data::write_token_file(packed.valid, dealer.valid, byte_values);
  return packed;
}

}  // namespace brume::interop
