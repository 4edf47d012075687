/// @file Which tokens each step trains on: a pure function of seed and step, so a resumed run goes
/// on exactly.
#pragma once

#include <cstdint>
#include <span>

#include "data/token_file.hpp"

namespace brume::data {

enum class Order { sequential, shuffled };

/// Cuts a token file into windows of seq_len + 1 tokens, seq_len apart, and puts them in an order.
///
/// Window w starts at token w * seq_len; a shuffled epoch visits every window once, in a
/// permutation that follows from seed and epoch and is computed without a table.
class Sampler {
 public:
  /// @throws Error(input) when the file holds less than one window
  Sampler(TokenFile file, Order order, std::uint64_t seed, int seq_len);

  /// The window for sample `index` = step * global_batch + position in the batch.
  ///
  /// @param inputs   [T] tokens
  /// @param targets  [T] the tokens that follow them
  /// @throws Error(storage)  when the file cannot be read, or was cut since it was opened
  void sample(std::int64_t index, std::span<std::int32_t> inputs,
              std::span<std::int32_t> targets) const;

  std::int64_t num_windows() const { return num_windows_; }
  TokenFileIdentity identity() const { return file_.identity(); }  ///< of the file it samples

 private:
  std::int64_t window(std::int64_t index) const;

  TokenFile file_;
  Order order_;
  std::uint64_t seed_;
  int seq_len_;
  std::int64_t num_windows_;
};

/// Windows of `count` random tokens, the same each time, for measurements.
/// @throws Error(storage) when the temporary folder cannot hold them for a moment
Sampler random_tokens(int vocab_size, int seq_len, std::int64_t count);

}  // namespace brume::data
