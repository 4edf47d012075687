/// @file Orders of samples: permutations by a seed, and mixtures of several files.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "base/mix.hpp"

namespace brume::data {

/// A permutation of 2 half_bits bits, keyed: a Feistel network of six rounds.
inline std::uint64_t scramble(std::uint64_t x, int half_bits, std::uint64_t key) {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  std::uint64_t left = x >> half_bits;
  std::uint64_t right = x & mask;
  for (std::uint64_t round = 1; round <= 6; ++round) {
    const std::uint64_t turned = left ^ (mix(key + (right << 3) + round) & mask);
    left = std::exchange(right, turned);
  }
  return left << half_bits | right;
}

/// A permutation of 0 .. count-1. The network's range is below 4 count, so few walks are needed.
inline std::int64_t permute(std::int64_t index, std::int64_t count, std::uint64_t key) {
  const int bits = std::bit_width(static_cast<std::uint64_t>(count - 1));
  auto x = static_cast<std::uint64_t>(index);
  do {
    x = scramble(x, (bits + 1) / 2, key);
  } while (x >= static_cast<std::uint64_t>(count));
  return static_cast<std::int64_t>(x);
}

/// Deals samples out to files, block by block: each file has its share of the samples before a
/// block, rounded down or, for the files that lose most by that, up. The samples of a block are
/// those of each file, one file after the other, in an order of the seed's. Threads may ask at
/// once.
class Mixture {
 public:
  struct Place {
    std::size_t file;
    std::int64_t index;  ///< among the samples of this file
  };

  /// @param shares   of the samples, by file; their sum is 1
  /// @param samples  of a block; each file has two of them, so that rounding takes none back
  Mixture(std::vector<double> shares, std::int64_t samples, std::uint64_t seed)
      : shares_(std::move(shares)), samples_(samples), key_(mix(seed + 0x2545f4914f6cdd1d)) {}

  Place place(std::int64_t index) const {
    const std::int64_t number = index / samples_;
    const auto block = block_of(number);
    const std::int64_t within =
        permute(index % samples_, samples_, mix(key_ + std::uint64_t(number)));
    const auto end = std::ranges::upper_bound(block->ends, within);
    const auto file = std::size_t(end - block->ends.begin());
    return {file, block->before[file] + within - (file == 0 ? 0 : block->ends[file - 1])};
  }

 private:
  struct Block {
    std::int64_t number;
    std::vector<std::int64_t> before;  ///< samples of each file in earlier blocks
    std::vector<std::int64_t> ends;    ///< samples in this block of each file and those before it
  };

  /// Neighbouring samples ask for the same block, so the last one is kept.
  std::shared_ptr<const Block> block_of(std::int64_t number) const {
    const std::lock_guard lock(mutex_);
    if (last_ && last_->number == number) return last_;
    Block block{number, samples_before(number), samples_before(number + 1)};
    std::ranges::transform(block.ends, block.before, block.ends.begin(), std::minus());
    std::partial_sum(block.ends.begin(), block.ends.end(), block.ends.begin());
    return last_ = std::make_shared<const Block>(std::move(block));
  }

  std::vector<std::int64_t> samples_before(std::int64_t block) const {
    const double all = double(block * samples_);
    std::vector<std::int64_t> samples(shares_.size());
    std::ranges::transform(shares_, samples.begin(),
                           [&](double share) { return std::int64_t(std::floor(all * share)); });
    const std::int64_t left =
        block * samples_ - std::accumulate(samples.begin(), samples.end(), std::int64_t{0});
    std::vector<std::size_t> files(shares_.size());
    std::iota(files.begin(), files.end(), std::size_t{0});
    const auto lost = [&](std::size_t file) { return all * shares_[file] - double(samples[file]); };
    std::ranges::stable_sort(files, std::greater(), lost);
    for (std::int64_t i = 0; i < left; ++i) ++samples[files[i]];
    return samples;
  }

  std::vector<double> shares_;
  std::int64_t samples_;  ///< of a block
  std::uint64_t key_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Block> last_;
};

}  // namespace brume::data
