/// @file Text encoded by several threads, in the order of its files.
#include "parallel_encoding.hpp"

#include <algorithm>
#include <utility>

namespace brume::interop {

ParallelEncoding::ParallelEncoding(TextReader& reader, const PackOptions& options)
    : reader_(reader), options_(options) {
  const std::size_t cores = std::thread::hardware_concurrency();
  threads_ahead_ =
      std::max<std::size_t>(options.threads > 0 ? std::size_t(options.threads) : cores, 1);
  for (std::size_t i = 0; i < threads_ahead_; ++i) threads_.emplace_back([this] { work(); });
}

ParallelEncoding::~ParallelEncoding() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

std::optional<ParallelEncoding::Made> ParallelEncoding::take() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return made_.empty() ? read_all_ : made_.front().done; });
  if (made_.empty()) return std::nullopt;
  Made made = std::move(made_.front());
  made_.pop_front();
  held_ -= made.bytes;
  changed_.notify_all();
  if (made.failure) std::rethrow_exception(made.failure);
  return made;
}

void ParallelEncoding::work() {
  std::optional<Encoder> encoder;
  while (Made* const made = next(encoder)) {
    try {
      if (!made->failure) made->documents = encoder->encode(made->piece);
    } catch (...) {
      made->failure = std::current_exception();
    }
    made->piece.text = {};
    const std::lock_guard lock(mutex_);
    made->done = true;
    changed_.notify_all();
  }
}

ParallelEncoding::Made* ParallelEncoding::next(std::optional<Encoder>& encoder) {
  const std::lock_guard reading(reading_);
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || read_all_ || has_room(); });
    if (stopped_ || read_all_) return nullptr;
  }
  Made made;
  std::optional<TextPiece> piece;
  try {
    if (!encoder) encoder.emplace(options_);
    piece = reader_.next(*encoder);
  } catch (...) {
    made.failure = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  read_all_ = !piece;
  changed_.notify_all();
  if (!piece && !made.failure) return nullptr;
  if (piece) made.piece = std::move(*piece);
  made.bytes = made.piece.text.size();
  held_ += made.bytes;
  return &made_.emplace_back(std::move(made));
}

}  // namespace brume::interop
