/// @file Checks that all communicators share.
#pragma once

#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

#include "base/error.hpp"

namespace brume::comm {

/// The length of one of `size` equal parts of `count` values.
/// @throws Error(bug) when they are not equal
inline std::size_t part_size(std::size_t count, int size) {
  const auto parts = static_cast<std::size_t>(size);
  require(count % parts == 0, Failure::bug, "{} values do not make {} equal parts", count, size);
  return count / parts;
}

/// Parts of `all` with these lengths, one after the other.
/// @throws Error(bug) unless there is one for each of `size` ranks and they add up to `all`
template <typename Byte>
std::vector<std::span<Byte>> parts_of(std::span<Byte> all, std::span<const std::size_t> bytes,
                                      int size) {
  const std::size_t sum = std::accumulate(bytes.begin(), bytes.end(), std::size_t{0});
  require(bytes.size() == static_cast<std::size_t>(size) && sum == all.size(), Failure::bug,
          "{} parts of {} bytes in all: found {} bytes, expected a part for each of {} ranks",
          bytes.size(), sum, all.size(), size);
  std::vector<std::span<Byte>> parts;
  for (const std::size_t length : bytes) {
    parts.push_back(all.first(length));
    all = all.subspan(length);
  }
  return parts;
}

/// @throws Error(bug) if a rank sends another number of bytes
inline void require_part(std::size_t sent, std::size_t expected, std::size_t rank) {
  require(sent == expected, Failure::bug,
          "rank {} of the group sent a part of {} bytes, {} were expected", rank, sent, expected);
}

}  // namespace brume::comm
