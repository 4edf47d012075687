#include "data/sampler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/files.hpp"

namespace brume::data {
namespace {

/// A bijection of 64 bits that spreads each bit over all.
/// @source  splitmix64: Steele, Lea and Flood 2014; constants of Stafford's variant 13
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

/// A permutation of 2 half_bits bits, keyed: a Feistel network of six rounds.
std::uint64_t scramble(std::uint64_t x, int half_bits, std::uint64_t key) {
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
std::int64_t permute(std::int64_t index, std::int64_t count, std::uint64_t key) {
  const int bits = std::bit_width(static_cast<std::uint64_t>(count - 1));
  auto x = static_cast<std::uint64_t>(index);
  do {
    x = scramble(x, (bits + 1) / 2, key);
  } while (x >= static_cast<std::uint64_t>(count));
  return static_cast<std::int64_t>(x);
}

/// A folder that goes with what is in it.
struct Removed {
  std::filesystem::path folder;
  ~Removed() {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  }
};

}  // namespace

Sampler::Sampler(TokenFile file, Order order, std::uint64_t seed, int seq_len)
    : file_(std::move(file)), order_(order), seed_(seed), seq_len_(seq_len) {
  require(seq_len >= 1, Failure::bug, "a window of {} tokens", seq_len);
  const std::int64_t count = file_.size();
  require(count > seq_len, Failure::input,
          "{}: holds {} tokens, but one sequence takes {} (seq_len + 1)", file_.path().string(),
          count, std::int64_t{seq_len} + 1);
  num_windows_ = (count - 1) / seq_len;
}

void Sampler::sample(std::int64_t index, std::span<std::int32_t> inputs,
                     std::span<std::int32_t> targets) const {
  const auto length = static_cast<std::size_t>(seq_len_);
  require(index >= 0, Failure::bug, "sample {}", index);
  require(inputs.size() == length && targets.size() == length, Failure::bug,
          "a sample of {} tokens into {} inputs and {} targets", length, inputs.size(),
          targets.size());
  std::vector<std::int32_t> tokens(length + 1);
  file_.read(window(index) * seq_len_, tokens);
  std::copy_n(tokens.begin(), length, inputs.begin());
  std::copy_n(tokens.begin() + 1, length, targets.begin());
}

std::int64_t Sampler::window(std::int64_t index) const {
  const std::int64_t within = index % num_windows_;
  if (order_ == Order::sequential) return within;
  const auto epoch = static_cast<std::uint64_t>(index / num_windows_);
  return permute(within, num_windows_, mix(mix(seed_ + 0x9e3779b97f4a7c15) + epoch));
}

Sampler random_tokens(int vocab_size, int seq_len, std::int64_t count) {
  // The file gets a folder of its own, because others may write to that of temporary files.
  std::string folder = (std::filesystem::temp_directory_path() / "brume-random-XXXXXX").string();
  const bool made = ::mkdtemp(folder.data()) != nullptr;
  require(made, Failure::storage, "{}: cannot be made: {}", folder, last_error());
  std::mt19937 random(1);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (std::int32_t& token : tokens) token = std::int32_t(random() % unsigned(vocab_size));
  const Removed at_the_end{folder};
  const std::filesystem::path path = std::filesystem::path(folder) / "random.tok";
  write_token_file(path, tokens, vocab_size);
  return Sampler(TokenFile(path), Order::sequential, 1, seq_len);  // which keeps it open
}

}  // namespace brume::data
