/// @file Documents for tests of attention.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "kernels/attention.hpp"

namespace brume::kernels {

/// First tokens of the documents of all tokens: each document has up to `longest` tokens.
inline std::vector<std::int32_t> random_begins(const AttentionShape& shape, int longest) {
  std::mt19937 random(7);
  std::vector<std::int32_t> begins;
  for (int b = 0; b < shape.batch; ++b)
    for (int begin = 0, end = 0, n = 0; n < shape.seq_len; ++n) {
      if (n == end) begin = n, end = n + 1 + int(random() % unsigned(longest));
      begins.push_back(begin);
    }
  return begins;
}

}  // namespace brume::kernels
