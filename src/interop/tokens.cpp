#include "interop/tokens.hpp"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <iterator>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "base/files.hpp"
#include "data/token_writer.hpp"
#include "documents.hpp"

namespace brume::interop {
namespace {

namespace fs = std::filesystem;

/// One token file in the making.
class Stream {
 public:
  Stream(const fs::path& path, int vocab_size) : file_(path, vocab_size) {}

  /// A part of a document whose first `given` tokens are not to be learned.
  void add(std::span<const std::int32_t> part, std::int64_t given, bool begins) {
    const std::int64_t first = file_.size();
    if (begins) {
      end_document();
      answer_ = first;
    }
    if (given > 0) answer_ = first + std::min(given, std::ssize(part));
    file_.add(part);
  }

  std::int64_t size() const { return file_.size(); }

  void commit(bool any_given) {
    end_document();
    file_.commit(any_given);
  }

 private:
  void end_document() {
    if (answer_) file_.add_document(file_.size(), *answer_);
    answer_.reset();
  }

  data::TokenFileWriter file_;
  std::optional<std::int64_t> answer_;  ///< of the present document, if there is one
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

/// Encodes parts on all cores, and hands their documents out in the parts' order.
class ParallelEncoding {
 public:
  ParallelEncoding(const std::vector<TextPart>& parts, const PackOptions& options)
      : parts_(parts), options_(options), made_(parts.size()) {
    const std::size_t cores = std::thread::hardware_concurrency();
    const std::size_t threads =
        std::clamp<std::size_t>(options.threads > 0 ? std::size_t(options.threads) : cores, 1,
                                std::max<std::size_t>(parts.size(), 1));
    threads_ahead_ = threads;
    bytes_ahead_ = std::int64_t(threads) * bytes_ahead;
    for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }
  ~ParallelEncoding() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }

  /// The documents of the next part. @throws what reading it threw
  std::vector<TokenDocument> take() {
    std::unique_lock lock(mutex_);
    Made& made = made_[taken_];
    changed_.wait(lock, [&] { return made.done; });
    held_ -= bytes_of(taken_++);
    changed_.notify_all();
    if (made.failure) std::rethrow_exception(made.failure);
    return std::move(made.documents);
  }

 private:
  struct Made {
    std::vector<TokenDocument> documents = {};
    std::exception_ptr failure = {};
    bool done = false;
  };

  static constexpr std::int64_t bytes_ahead = 8 << 20;  ///< a thread

  std::int64_t bytes_of(std::size_t part) const { return parts_[part].end - parts_[part].first; }

  /// Whether another part may be begun: a thread has one in its hands, and few bytes wait.
  bool has_room() const { return begun_ < taken_ + threads_ahead_ || held_ < bytes_ahead_; }

  /// Takes part after part, not far ahead of what was taken; each thread has an encoder of its own.
  void work() {
    std::optional<Encoder> encoder;
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopped_ || begun_ == parts_.size() || has_room(); });
      if (stopped_ || begun_ == parts_.size()) return;
      const std::size_t number = begun_++;
      held_ += bytes_of(number);
      lock.unlock();
      Made made{.done = true};
      try {
        if (!encoder) encoder.emplace(options_);
        made.documents = encoder->encode(parts_[number]);
      } catch (...) {
        made.failure = std::current_exception();
      }
      lock.lock();
      made_[number] = std::move(made);
      changed_.notify_all();
    }
  }

  const std::vector<TextPart>& parts_;
  const PackOptions& options_;
  std::size_t threads_ahead_ = 0;
  std::int64_t bytes_ahead_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Made> made_;             ///< by part; with what follows, under the mutex
  std::size_t begun_ = 0, taken_ = 0;  ///< parts
  std::int64_t held_ = 0;              ///< bytes of parts that were begun, not taken
  bool stopped_ = false;
  std::vector<std::jthread> threads_;  ///< last: they use the rest
};

}  // namespace

PackedText pack_text(const std::vector<fs::path>& files, const fs::path& directory,
                     const PackOptions& options) {
  require(options.valid_ratio >= 0.0 && options.valid_ratio < 1.0, Failure::input,
          "the share held out must be in 0..1, below 1, found {}", options.valid_ratio);
  require(options.block_tokens >= 1, Failure::input, "a block must have at least 1 token, found {}",
          options.block_tokens);
  const TextParts text = text_parts(files);
  const int vocab_size = Encoder(options).vocab_size();
  PackedText packed{.train = directory / "train.tok",
                    .valid = directory / "valid.tok",
                    .left_out = text.left_out,
                    .no_text = text.no_text};
  make_directory(directory);
  Dealer dealer(options, packed, vocab_size);
  std::int64_t read = 0;
  ParallelEncoding encoding(text.parts, options);
  for (const TextPart& part : text.parts) {
    for (const TokenDocument& document : encoding.take()) {
      if (document.answer_bytes == 0) continue;
      dealer.add(document);
      ++packed.documents;
      packed.bytes += document.bytes;
    }
    read += part.end - part.first;
    if (options.progress) options.progress(double(read) / double(text.bytes));
  }
  packed.train_tokens = dealer.train.size();
  packed.valid_tokens = dealer.valid.size();
  require(packed.documents > 0, Failure::input, "the files to pack hold no text");
  dealer.train.commit(dealer.any_given);
  dealer.valid.commit(dealer.any_given);
  return packed;
}

std::vector<TokenDocument> read_documents(const fs::path& file, const PackOptions& options) {
  Encoder encoder(options);
  std::vector<TokenDocument> documents;
  for (const TextPart& part : text_parts({file}).parts)
    std::ranges::move(encoder.encode(part), std::back_inserter(documents));
  return documents;
}

}  // namespace brume::interop
