/// @file Rows of tokens that ranks send to the ranks of their experts.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/experts.hpp"

namespace brume::kernels {

/// The row of a token, or of its copy, that is not among the rows.
inline constexpr std::int32_t no_row = std::numeric_limits<std::int32_t>::max();

/// The rows that one of S ranks exchanges with the others: it has M tokens of all N = S M, in the
/// order of ranks, and E / S of the experts.
struct TokenRows {
  std::int32_t* sent = nullptr;          ///< [M, k] row for the rank of a copy's expert, one a rank
  std::int32_t* sent_begins = nullptr;   ///< [S + 1] first row to each rank
  std::int32_t* places = nullptr;        ///< [N] row of each token among those that come
  std::int32_t* place_begins = nullptr;  ///< [S + 1] first row from each rank
  int ranks = 1, rank = 0;               ///< S; this one
  std::int64_t own_tokens = 0;           ///< M
};

/// Sorts the choices of all ranks' tokens.
///
/// @param choices  [S, 2, M k] of each rank the numbers of experts, then the gates
/// @param routes   `experts` is written, of all N tokens
/// @param gates    [N k] of all tokens, in their order
/// @param rows     its arrays are written
void read_choices(ConstVector choices, const Routes& routes, Vector gates, const TokenRows& rows);

/// Rows of the copies of some tokens, as choose_experts makes them.
///
/// @param of_tokens  [N k] gates in the order of tokens
/// @param gates      [N k] by row
/// @param routes     `experts` are known; `rows` and `begins` are written
void order_copies(ConstVector of_tokens, const Routes& routes, Vector gates);

/// @param d_gates    [R] by row; those of all other rows have the gradient 0
/// @param first      token with which the N tokens of the routes begin, among those of all ranks
/// @param d_choices  [S, 2, M k] those of the tokens are replaced, of numbers by 0
void order_copies_backward(ConstVector d_gates, const Routes& routes, std::int64_t first,
                           std::int64_t tokens, std::int64_t tokens_of_rank, Vector d_choices);

/// Key of copy i of a rank's tokens in TokenRows::sent: the rank of its expert, of the token's
/// first copy there.
constexpr int rank_of_copy(const std::int32_t* experts, int chosen, int num_held, std::int64_t i) {
  const int rank = experts[i] / num_held;
  return i % chosen > 0 && experts[i - 1] / num_held == rank ? -1 : rank;
}

/// Key of a token in TokenRows::places: its rank, if one of its experts is held here.
constexpr int rank_of_arrival(const Routes& routes, std::int64_t token,
                              std::int64_t tokens_of_rank) {
  for (int j = 0; j < routes.chosen; ++j)
    if (routes.place(routes.experts[token * routes.chosen + j]) < routes.num_held)
      return int(token / tokens_of_rank);
  return -1;
}

}  // namespace brume::kernels
