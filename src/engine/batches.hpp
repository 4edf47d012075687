/// @file This rank's part of global batches, read while a step runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <future>
#include <span>
#include <stop_token>
#include <vector>

#include "data/sampler.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace brume::engine {

/// A rank's tokens of its sequences, [microbatch, sequence, T / cp], T with padding.
struct Batch {
  std::vector<std::int32_t> inputs, targets;
  std::vector<std::int32_t> begins;      ///< of whole sequences, [microbatch, sequence, T]
  std::int64_t learned = 0;              ///< target tokens of the whole batch, all ranks'
  std::vector<std::int64_t> learned_of;  ///< ... of each of its sequences, of pairs only
};

/// Reads batches, the next one by a thread of its own.
class BatchReader {
 public:
  /// Whether samples of isolated documents are dealt to data-parallel ranks by their attention.
  ///
  /// In order, ranks wait for the one with the longest documents. Dealt by attention, ranks have
  /// similar sums, and similar work in each microbatch. A batch learns the same.
  enum class Deal { in_order, by_attention };

  BatchReader(const plan::Plan& plan, const model::Config& model, int rank,
              Deal deal = Deal::in_order)
      : plan_(plan), model_(model), place_(plan::place(plan, rank)), deal_(deal) {}
  ~BatchReader() { drop(); }
  BatchReader(const BatchReader&) = delete;
  BatchReader& operator=(const BatchReader&) = delete;

  /// The batch of samples from `first` on; of those from `count` on nothing is learned.
  /// @throws Error(input) for tokens that the model does not know, Error(storage)
  Batch take(const data::Sampler& data, std::int64_t first, std::int64_t count);

  /// Begins to read the batch that is probably taken next. `data` must live until another one is
  /// taken.
  void read_ahead(const data::Sampler& data, std::int64_t first, std::int64_t count);

  bool waits() const { return waits_; }  ///< for a batch; any thread

  /// The numbers of this rank's sequences in a batch in order, [microbatch, sequence].
  std::vector<std::int64_t> own_sequences() const;
  /// The same in the batch of samples from `first` on, as they are dealt.
  std::vector<std::int64_t> own_sequences(const data::Sampler& data, std::int64_t first) const;

 private:
  struct Asked {
    const data::Sampler* data = nullptr;
    std::int64_t first = 0, count = 0;
    bool operator==(const Asked&) const = default;
  };
  Batch read(const Asked& asked, const std::stop_token& stop) const;
  void check_tokens(std::span<const std::int32_t> tokens, std::int32_t least) const;
  void drop();

  const plan::Plan& plan_;
  const model::Config& model_;
  plan::Place place_;
  Deal deal_;
  std::atomic<bool> waits_ = false;
  Asked ahead_;
  std::stop_source stop_;
  std::future<Batch> coming_;  ///< what `ahead_` asks for, if valid
};

}  // namespace brume::engine
