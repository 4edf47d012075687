/// @file The values by which `selftest` knows wrong transfers.
#pragma once

#include <cstddef>

namespace brume::app {

/// What a rank gives to sums: from 1 to 13, so that they are exact in fp32, in any order, for more
/// than a million ranks.
inline float term(int rank, std::size_t i) { return float((std::size_t(rank) + i) % 13 + 1); }
inline float sum_of_terms(int ranks, std::size_t i) {
  float sum = float(ranks / 13 * (13 * 14 / 2));
  for (int rank = ranks / 13 * 13; rank < ranks; ++rank) sum += term(rank, i);
  return sum;
}
/// Number that a rank passes on. Thousands of ranks near it have other ones.
inline float mark(int rank, std::size_t i) {
  return float((std::size_t(rank) * 64 + i % 64) % (1 << 20));
}

}  // namespace brume::app
