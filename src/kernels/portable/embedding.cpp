#include "kernels/embedding.hpp"

#include <bit>

#include "kernels/portable/launch.hpp"

namespace brume::kernels {
namespace {

/// A token and its place n, in one number that is larger for a larger token, then for a later
/// place.
using Place = std::uint64_t;
static_assert(sizeof(Place) * device_limits::sorted_tokens == workspace_bytes);
static_assert(std::has_single_bit(std::uint64_t(device_limits::sorted_tokens)));

KOKKOS_INLINE_FUNCTION int token_of(Place place) { return int(std::uint32_t(place >> 32)); }
KOKKOS_INLINE_FUNCTION int index_of(Place place) { return int(std::uint32_t(place)); }

/// All tokens' places, sorted: those of one token side by side and in order. In the workspace.
///
/// @source  Batcher 1968, bitonic sorting
const Place* sorted_places(const ConstTokens& tokens) {
  const auto count = std::int64_t(tokens.size());
  const auto room = std::int64_t(std::bit_ceil(tokens.size()));
  Place* const places = workspace_of<Place>(room);
  for_each(
      "embedding_places", room, KOKKOS_LAMBDA(std::int64_t n) {
        places[n] = n < count ? Place(std::uint32_t(tokens(n))) << 32 | Place(n) : ~Place(0);
      });
  for (std::int64_t sorted = 2; sorted <= room; sorted *= 2)
    for (std::int64_t distance = sorted / 2; distance > 0; distance /= 2)
      for_each(
          "embedding_sort", room / 2, KOKKOS_LAMBDA(std::int64_t pair) {
            const std::int64_t low = pair / distance * 2 * distance + pair % distance;
            const Place first = places[low], second = places[low + distance];
            const bool rises = (low & sorted) == 0;
            if ((first > second) == rises) places[low] = second, places[low + distance] = first;
          });
  return places;
}

}  // namespace

template <class Storage>
void embedding_forward(ConstTokens tokens, ConstMatrixOf<Storage> token_table,
                       ConstMatrixOf<Storage> position_table, MatrixOf<Storage> x,
                       VocabularyPart part, float scale, Documents documents) {
  promise_embedding("embedding_forward", tokens, x, token_table, position_table);
  const bool learned = position_table.data() != nullptr;
  for_each_row(
      "embedding_forward", x.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank(), row = tokens(n) - part.first;
        const int t = learned ? documents.table_row(n, position_table.extent(0)) : 0;
        const bool here = row >= 0 && row < token_table.extent_int(0);
        along(team, x.extent_int(1), [&](int c) {
          const float token = here ? scale * token_table(row, c) : 0.0f;
          x(n, c) = learned ? token + position_table(t, c) : token;
        });
      });
}

template <class Storage>
void embedding_backward(ConstTokens tokens, ConstMatrixOf<Storage> dx, Matrix d_token_table,
                        Matrix d_position_table, VocabularyPart part, float scale,
                        Documents documents) {
  promise_embedding("embedding_backward", tokens, dx, d_token_table, d_position_table);
  const int count = dx.extent_int(0), width = dx.extent_int(1);
  const bool wants_tokens = d_token_table.data() != nullptr;
  const Place* const places = wants_tokens ? sorted_places(tokens) : nullptr;
  // The first of several places with one token adds for all of them, in order.
  for_each_row(
      "embedding_backward", wants_tokens ? dx.extent(0) : 0, KOKKOS_LAMBDA(const Team& team) {
        const int first = team.league_rank(), token = token_of(places[first]);
        const int row = token - part.first;
        if (row < 0 || row >= d_token_table.extent_int(0)) return;
        if (first > 0 && token_of(places[first - 1]) == token) return;
        along(team, width, [&](int c) {
          float sum = d_token_table(row, c);
          for (int i = first; i < count && token_of(places[i]) == token; ++i)
            sum += scale * dx(index_of(places[i]), c);
          d_token_table(row, c) = sum;
        });
      });
  if (d_position_table.data() == nullptr) return;
  const int length = d_position_table.extent_int(0);
  const bool pads = documents.pads(length);
  const int before = pads ? 0 : int(documents.first % length);
  // From a first one on, any token may have a place.
  const bool any = pads || documents.begins != nullptr || documents.zigzag.cuts();
  for_each_row(
      "embedding_backward_positions", d_position_table.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int t = team.league_rank();
        const int from = pads  ? 0
                         : any ? (t > before ? t - before : 0)
                               : (t + length - before) % length;
        for (int n = from; n < count; n += any ? 1 : length)
          if (documents.table_row(n, length) == t)
            along(team, width, [&](int c) { d_position_table(t, c) += dx(n, c); });
      });
}

}  // namespace brume::kernels

#include "kernels/instances/embedding.hpp"
