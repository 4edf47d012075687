#include "kernels/attention.hpp"

#include <cmath>

#include "kernels/fused_attention.hpp"
#include "kernels/portable/attention_rows.hpp"
#include "kernels/soft_cap.hpp"

namespace brume::kernels {
namespace {

/// A query and the sum over the keys that it has seen.
template <int held>
struct Query {
  Row<held> q, sum;
  Running running;
  float scale, cap;

  /// Goes on by keys [first, first + count).
  template <int count, class Storage>
  KOKKOS_INLINE_FUNCTION void see(const Team& team, const ConstMatrixOf<Storage>& keys,
                                  const HeadOf& at, int first) {
    float weights[count];
    for (int k = 0; k < count; ++k)
      weights[k] = soft_cap(
          scale * sum_of_lanes(team, q.times(&keys(at.key(first + k), at.key_column))), cap);
    sum.scale(running.weigh(weights));
    for (int k = 0; k < count; ++k) sum.add(weights[k], &keys(at.key(first + k), at.value_column));
  }
};

/// A unit a query, which goes over the keys that it sees.
template <int held, class Storage>
void forward(const AttentionShape& shape, const ConstMatrixOf<Storage>& q,
             const ConstMatrixOf<Storage>& keys, const MatrixOf<Storage>& o, const Vector& lse,
             const ConstVectorOf<Storage>& sinks) {
  const std::int64_t units = std::int64_t(shape.batch) * shape.heads * shape.queries();
  const float scale = shape.score_scale();
  for_each_unit(
      "attention_forward", units, KOKKOS_LAMBDA(const Team& team) {
        const std::int64_t unit = unit_of(team);
        if (unit >= units) return;
        const HeadOf at(shape, unit);
        const Row<held> zero(shape, lane_of(team));
        const int head = int(unit / shape.queries() % shape.heads), last = at.position();
        Query<held> query{zero, zero, running_of(sinks, head), scale, shape.cap};
        query.q.load(&q(at.token(at.row), at.query_column));
        int key = shape.first_key(at.sequence, last);
        for (; key + at_once <= last + 1; key += at_once)
          query.template see<at_once, Storage>(team, keys, at, key);
        for (; key <= last; ++key) query.template see<1, Storage>(team, keys, at, key);
        query.sum.scale(1.0f / query.running.sum);
        query.sum.store(&o(at.token(at.row), at.output_column));
        if (zero.lane == 0) lse(unit) = query.running.top + std::log(query.running.sum);
      });
}

/// Adds sinks to a softmax without them: lse' = log(e^lse + e^sink), o' = o e^(lse - lse').
template <class Storage>
void add_sinks(const AttentionShape& shape, const MatrixOf<Storage>& o, const Vector& lse,
               const ConstVectorOf<Storage>& sinks) {
  const std::int64_t units = std::int64_t(shape.batch) * shape.heads * shape.queries();
  for_each_unit(
      "attention_forward_sinks", units, KOKKOS_LAMBDA(const Team& team) {
        const std::int64_t unit = unit_of(team);
        if (unit >= units) return;
        const HeadOf at(shape, unit);
        const float sink = sinks(int(unit / shape.queries() % shape.heads));
        const bool first = lane_of(team) == 0;
        const float before = sum_of_lanes(team, first ? lse(unit) : 0.0f);
        const float top = sink > before ? sink : before;
        const float after = top + std::log(vector_exp(sink - top) + vector_exp(before - top));
        const float share = vector_exp(before - after);
        Storage* const row = &o(at.token(at.row), at.output_column);
        for (int d = lane_of(team); d < shape.head_dim; d += unit_lanes)
          row[d] = Storage(share * float(row[d]));
        if (first) lse(unit) = after;
      });
}

}  // namespace

template <class Storage>
void attention_forward(const AttentionShape& shape, ConstMatrixOf<Storage> qkv, MatrixOf<Storage> o,
                       Vector lse, ConstVectorOf<Storage> sinks, ConstMatrixOf<Storage> keys) {
  promise_attention("attention_forward", shape, qkv, o, lse, keys);
  promise_sinks("attention_forward", shape, sinks);
  if constexpr (sizeof(Storage) == 2)
    if (!shape.zigzag.cuts() &&
        fused_attention(Pass::forward, shape, fused_operands<Storage>(qkv, o, lse))) {
      if (sinks.data() != nullptr) add_sinks<Storage>(shape, o, lse, sinks);
      return;
    }
  if (!shape.zigzag.cuts()) keys = keys_beside(qkv, shape);
  with_features_held("attention_forward", shape, [&](auto held) {
    forward<decltype(held)::value, Storage>(shape, qkv, keys, o, lse, sinks);
  });
}

template void attention_forward<float>(const AttentionShape&, ConstMatrix, Matrix, Vector,
                                       ConstVector, ConstMatrix);
template void attention_forward<bfloat16>(const AttentionShape&, ConstMatrixOf<bfloat16>,
                                          MatrixOf<bfloat16>, Vector, ConstVectorOf<bfloat16>,
                                          ConstMatrixOf<bfloat16>);
template void attention_forward<float16>(const AttentionShape&, ConstMatrixOf<float16>,
                                         MatrixOf<float16>, Vector, ConstVectorOf<float16>,
                                         ConstMatrixOf<float16>);

}  // namespace brume::kernels
