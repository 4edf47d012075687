/// @file The bytes of a token file of ours, as README.md lays them out.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

namespace brume::data {

static_assert(std::endian::native == std::endian::little, "token files are read as they are");

constexpr int max_vocab_16_bits = 1 << 16;
constexpr int max_vocab = std::numeric_limits<std::int32_t>::max();
constexpr std::uint32_t newest_version = 5;
constexpr std::uint32_t pairs_version = 5;  ///< whose documents are pairs
/// In the start of an answer: its document continues the one before.
constexpr std::int64_t continues_mark = std::numeric_limits<std::int64_t>::min();

/// The first 64 bytes of a token file.
struct Header {
  std::array<char, 8> magic = {'B', 'R', 'U', 'M', 'E', 'T', 'O', 'K'};
  std::uint32_t version = 1;
  std::uint32_t token_bytes = 2;
  std::uint32_t vocab_size = 0;
  std::uint32_t zero = 0;
  std::uint64_t count = 0;
  std::uint64_t checksum = 0;
  std::uint64_t documents = 0;
  std::uint64_t answers = 0;  ///< none, or as many as documents
  std::uint64_t last_zero = 0;
};
static_assert(sizeof(Header) == 64);

/// A file has the oldest version that can hold what it says.
inline Header header_for(std::int64_t count, int vocab_size, std::int64_t documents = 0,
                         std::int64_t answers = 0, bool continued = false, bool pairs = false) {
  const bool wide = vocab_size > max_vocab_16_bits;
  return {.version = pairs           ? pairs_version
                     : continued     ? 4u
                     : documents > 0 ? 3u
                     : wide          ? 2u
                                     : 1u,
          .token_bytes = wide ? 4u : 2u,
          .vocab_size = std::uint32_t(vocab_size),
          .count = std::uint64_t(count),
          .documents = std::uint64_t(documents),
          .answers = std::uint64_t(answers)};
}

/// The checksum of README.md, from bytes that come piece by piece. Four sums side by side keep up
/// with the memory.
class Checksum {
 public:
  static constexpr std::size_t step = 32;  ///< bytes; all pieces but the last are multiples

  void add(std::span<const std::byte> bytes) {
    constexpr std::size_t word_bytes = step / 4;
    for (std::size_t i = 0; i < bytes.size(); i += step) {
      std::array<std::uint64_t, 4> words{};
      const std::size_t left = std::min(bytes.size() - i, step);
      std::memcpy(words.data(), bytes.data() + i, left);
      for (std::size_t k = 0; k * word_bytes < left; ++k) sums_[k] = stir(sums_[k], words[k]);
    }
  }

  std::uint64_t of(const Header& header) const {
    std::array<std::uint64_t, 4> front{};
    std::memcpy(front.data(), &header, sizeof(front));
    std::uint64_t sum = start;
    for (const std::uint64_t word : front) sum = stir(sum, word);
    if (header.documents > 0) sum = stir(stir(sum, header.documents), header.answers);
    for (const std::uint64_t word : sums_) sum = stir(sum, word);
    return sum;
  }

 private:
  static std::uint64_t stir(std::uint64_t sum, std::uint64_t word) {
    return std::rotl(sum ^ word, 29) * 0x100000001b3;
  }

  static constexpr std::uint64_t start = 0xcbf29ce484222325;
  std::array<std::uint64_t, 4> sums_ = {start, start + 1, start + 2, start + 3};
};

}  // namespace brume::data
