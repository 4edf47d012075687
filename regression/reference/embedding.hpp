/// @file Plain embedding.
#pragma once

#include "reference/arrays.hpp"

namespace brume::reference {

inline Doubles embedding_forward(const std::vector<std::int32_t>& tokens,
                                 const Doubles& token_table, const Doubles& position_table, int T,
                                 int C) {
  Doubles x;
  for (std::size_t n = 0; n < tokens.size(); ++n)
    for (int c = 0; c < C; ++c)
      x.push_back(token_table[tokens[n] * C + c] + position_table[n % T * C + c]);
  return x;
}

/// Adds to both tables' gradients.
inline void embedding_backward(const std::vector<std::int32_t>& tokens, const Doubles& dx, int T,
                               int C, Doubles& d_token_table, Doubles& d_position_table) {
  for (std::size_t n = 0; n < tokens.size(); ++n)
    for (int c = 0; c < C; ++c) {
      d_token_table[tokens[n] * C + c] += dx[n * C + c];
      d_position_table[n % T * C + c] += dx[n * C + c];
    }
}

}  // namespace brume::reference
