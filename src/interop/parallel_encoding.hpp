/// @file Text encoded by several threads, in the order of its files.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "documents.hpp"
#include "interop/tokens.hpp"
#include "text_reader.hpp"

namespace brume::interop {

/// Encodes pieces on all cores, and hands their documents out in the pieces' order.
class ParallelEncoding {
 public:
  ParallelEncoding(TextReader& reader, const PackOptions& options);
  ~ParallelEncoding();

  struct Made {
    TextPiece piece = {};  ///< without its text, once it is done
    std::vector<TokenDocument> documents = {};
    std::exception_ptr failure = {};
    bool done = false;
    std::size_t bytes = 0;  ///< of its text
  };

  /// The next piece; none: that was all. @throws what reading or encoding it threw
  std::optional<Made> take();

 private:
  static constexpr std::size_t bytes_ahead = 4 << 20;  ///< a thread

  /// Whether another piece may be read: a thread has one in its hands, and few bytes wait.
  bool has_room() const {
    return made_.size() < threads_ahead_ || held_ < threads_ahead_ * bytes_ahead;
  }

  /// Takes piece after piece, not far ahead of what was taken; each thread has an encoder of its
  /// own.
  void work();
  /// The place of the next piece, which is read by one thread after the other. None: that was all.
  Made* next(std::optional<Encoder>& encoder);

  TextReader& reader_;
  const PackOptions& options_;
  std::size_t threads_ahead_ = 0;
  std::mutex reading_;  ///< of the reader; taken before the other one
  std::mutex mutex_;    ///< of what follows
  std::condition_variable changed_;
  std::deque<Made> made_;  ///< pieces in order that were read, not taken
  std::size_t held_ = 0;   ///< bytes of these
  bool read_all_ = false, stopped_ = false;
  std::vector<std::jthread> threads_;  ///< last: they use the rest
};

}  // namespace brume::interop
