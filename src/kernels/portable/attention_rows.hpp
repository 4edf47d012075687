/// @file What attention's kernels hold of a token: its features of one head, dealt out over the
/// lanes of a unit.
#pragma once

#include <type_traits>

#include "kernels/attention.hpp"
#include "kernels/portable/launch.hpp"
#include "kernels/vector_math.hpp"

namespace brume::kernels {

inline constexpr int at_once = 4;  ///< keys or queries, of which no score waits for the others'

/// The place of a head of a sequence in the matrices.
struct HeadOf {
  int sequence, row;  ///< row: the unit's query, within its sequence
  int queries, seq_len;
  Zigzag zigzag;
  int query_column, key_column, value_column, output_column;

  /// @param unit  ((sequence, query head), row), counted through
  KOKKOS_INLINE_FUNCTION HeadOf(const AttentionShape& shape, std::int64_t unit)
      : HeadOf(shape, int(unit / shape.queries() / shape.heads),
               int(unit / shape.queries() % shape.heads), int(unit % shape.queries())) {}
  KOKKOS_INLINE_FUNCTION HeadOf(const AttentionShape& shape, int of_sequence, int head, int of_row)
      : sequence(of_sequence),
        row(of_row),
        queries(shape.queries()),
        seq_len(shape.seq_len),
        zigzag(shape.zigzag) {
    query_column = output_column = head * shape.head_dim;
    key_column = shape.key_head(head) * shape.head_dim;
    value_column = key_column + shape.keys() * shape.head_dim;
  }
  /// The row of a query.
  KOKKOS_INLINE_FUNCTION std::int64_t token(int of_row) const {
    return std::int64_t(sequence) * queries + of_row;
  }
  /// The row of a key by its place in the sequence.
  KOKKOS_INLINE_FUNCTION std::int64_t key(int position) const {
    return std::int64_t(sequence) * seq_len + zigzag.row(position);
  }
  /// The place in the sequence of the unit's query.
  KOKKOS_INLINE_FUNCTION int position() const { return zigzag.position(row); }
};

/// The columns of k and v beside queries.
template <class View>
View keys_beside(const View& qkv, const AttentionShape& shape) {
  const int queries = shape.heads * shape.head_dim;
  return View(qkv.data() + queries, qkv.extent(0), qkv.extent(1) - std::size_t(queries),
              qkv.stride(0));
}

/// Features lane, lane + unit_lanes, ... of a head: `held` a lane have room.
template <int held>
struct Row {
  float values[held] = {};
  int lane, head_dim;

  KOKKOS_INLINE_FUNCTION Row(const AttentionShape& shape, int of_lane)
      : lane(of_lane), head_dim(shape.head_dim) {}

  /// each(i, d) for each feature d of this lane, the i-th of its own.
  template <class Each>
  KOKKOS_INLINE_FUNCTION void features(const Each& each) const {
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int i = 0; i < held; ++i)
      if (const int d = lane + i * unit_lanes; d < head_dim) each(i, d);
  }
  template <class Storage>
  KOKKOS_INLINE_FUNCTION void load(const Storage* row) {
    features([&](int i, int d) { values[i] = row[d]; });
  }
  template <class Storage>
  KOKKOS_INLINE_FUNCTION void store(Storage* row) const {
    features([&](int i, int d) { row[d] = values[i]; });
  }
  /// This lane's part of the product with a row.
  template <class Storage>
  KOKKOS_INLINE_FUNCTION float times(const Storage* row) const {
    float sum = 0.0f;
    features([&](int i, int d) { sum += values[i] * row[d]; });
    return sum;
  }
  template <class Storage>
  KOKKOS_INLINE_FUNCTION void add(float weight, const Storage* row) {
    features([&](int i, int d) { values[i] += weight * row[d]; });
  }
  KOKKOS_INLINE_FUNCTION void scale(float factor) {
    for (float& value : values) value *= factor;
  }
};

/// What streaming softmax knows of a query.
struct Running {
  float top = 0.0f;  ///< largest score so far
  float sum = 0.0f;  ///< of exp(score - top) so far; 0 before the first

  /// scores -> exp(score - top), with those of before. @return what to scale sums so far by
  template <int count>
  KOKKOS_INLINE_FUNCTION float weigh(float (&scores)[count]) {
    float next = sum > 0.0f ? top : scores[0];
    for (int k = 0; k < count; ++k) next = scores[k] > next ? scores[k] : next;
    const float shrink = sum > 0.0f ? vector_exp(top - next) : 0.0f;
    sum *= shrink;
    for (int k = 0; k < count; ++k) sum += scores[k] = vector_exp(scores[k] - next);
    top = next;
    return shrink;
  }
};

/// The start of a query's softmax: a sink is the first score.
template <class Sinks>
KOKKOS_INLINE_FUNCTION Running running_of(const Sinks& sinks, int head) {
  if (sinks.data() == nullptr) return {};
  return {float(sinks(head)), 1.0f};
}

/// Calls body(std::integral_constant<int, held>) with room for a head's features.
template <class Body>
void with_features_held(const char* kernel, const AttentionShape& shape, const Body& body) {
  constexpr int most = device_limits::head_size;
  promise(shape.head_dim <= most, kernel, "a head has more features than devices take");
  const auto with = [&](auto features) {
    body(std::integral_constant<int, decltype(features)::value / unit_lanes>{});
  };
  if (shape.head_dim <= 32) return with(std::integral_constant<int, 32>{});
  if (shape.head_dim <= 64) return with(std::integral_constant<int, 64>{});
  if (shape.head_dim <= 128) return with(std::integral_constant<int, 128>{});
  with(std::integral_constant<int, most>{});
}

}  // namespace brume::kernels
