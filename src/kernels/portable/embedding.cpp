#include "kernels/embedding.hpp"

#include "kernels/portable/launch.hpp"

namespace brume::kernels {

template <class Storage>
void embedding_forward(ConstTokens tokens, ConstMatrixOf<Storage> token_table,
                       ConstMatrixOf<Storage> position_table, MatrixOf<Storage> x,
                       VocabularyPart part) {
  promise_embedding("embedding_forward", tokens, x, token_table, position_table);
  const bool learned = position_table.data() != nullptr;
  for_each_row(
      "embedding_forward", x.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank(), row = tokens(n) - part.first;
        const int t = learned ? n % position_table.extent_int(0) : 0;
        const bool here = row >= 0 && row < token_table.extent_int(0);
        along(team, x.extent_int(1), [&](int c) {
          const float token = here ? float(token_table(row, c)) : 0.0f;
          x(n, c) = learned ? token + position_table(t, c) : token;
        });
      });
}

template <class Storage>
void embedding_backward(ConstTokens tokens, ConstMatrixOf<Storage> dx, Matrix d_token_table,
                        Matrix d_position_table, VocabularyPart part) {
  promise_embedding("embedding_backward", tokens, dx, d_token_table, d_position_table);
  const int count = dx.extent_int(0), width = dx.extent_int(1);
  // The first of several places with one token adds for all of them, in order. Each looks through
  // all tokens, so the cost of that grows with their square: comparisons of what lies in caches.
  for_each_row(
      "embedding_backward", dx.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank(), token = tokens(n), row = token - part.first;
        if (row < 0 || row >= d_token_table.extent_int(0)) return;
        if (sum_along<int>(team, n, [&](int m) { return int(tokens(m) == token); }) > 0) return;
        for (int m = n; m < count; ++m)
          if (tokens(m) == token)
            along(team, width, [&](int c) { d_token_table(row, c) += dx(m, c); });
      });
  if (d_position_table.data() == nullptr) return;
  const int length = d_position_table.extent_int(0);
  for_each_row(
      "embedding_backward_positions", d_position_table.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int t = team.league_rank();
        for (int n = t; n < count; n += length)
          along(team, width, [&](int c) { d_position_table(t, c) += dx(n, c); });
      });
}

}  // namespace brume::kernels

#include "kernels/instances/embedding.hpp"
