#include "kernels/attention.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/fused_attention.hpp"
#include "kernels/portable/attention_rows.hpp"
#include "kernels/soft_cap.hpp"

namespace brume::kernels {
namespace {

/// Forward's operands and the gradient that came for its output.
template <class Storage>
struct Backward {
  AttentionShape shape;
  ConstMatrixOf<Storage> q, keys, o, d_o;
  ConstVector lse;
  MatrixOf<Storage> d_q, d_keys;
  float scale;
};

/// Consecutive key heads, sequence by sequence, with all their query heads.
struct Piece {
  std::int64_t first_key, end_key;    ///< (sequence, key head), counted through
  std::int64_t first_unit, end_unit;  ///< their (sequence, query head, row), as in lse
  float* means;                       ///< of these units: sum_d d_o o

  KOKKOS_INLINE_FUNCTION float& mean(std::int64_t unit) const { return means[unit - first_unit]; }
};

/// The query heads of all sequences before the `key`-th (sequence, key head).
std::int64_t query_heads_before(const AttentionShape& shape, std::int64_t key) {
  const int within = int(key % shape.keys()) * shape.group - shape.first_head;
  return key / shape.keys() * shape.heads + std::clamp(within, 0, shape.heads);
}

/// The largest piece from a key head on whose means a workspace holds, or one key head's.
Piece piece_from(const AttentionShape& shape, std::int64_t first_key) {
  constexpr std::int64_t room = device_limits::queries_of_key_head;
  static_assert(room * sizeof(float) == workspace_bytes);
  const std::int64_t keys = std::int64_t(shape.batch) * shape.keys();
  const auto unit = [&](std::int64_t key) {
    return query_heads_before(shape, key) * shape.queries();
  };
  const std::int64_t first_unit = unit(first_key);
  std::int64_t end_key = first_key + 1;
  while (end_key < keys && unit(end_key + 1) - first_unit <= room) ++end_key;
  return {.first_key = first_key,
          .end_key = end_key,
          .first_unit = first_unit,
          .end_unit = unit(end_key),
          .means = workspace_of<float>(unit(end_key) - first_unit)};
}

template <int held, class Storage>
void write_means(const Backward<Storage>& of, const Piece& piece) {
  for_each_unit(
      "attention_backward_means", piece.end_unit - piece.first_unit,
      KOKKOS_LAMBDA(const Team& team) {
        const std::int64_t unit = piece.first_unit + unit_of(team);
        if (unit >= piece.end_unit) return;
        const HeadOf at(of.shape, unit);
        Row<held> d_o(of.shape, lane_of(team));
        d_o.load(&of.d_o(at.token(at.row), at.output_column));
        const float mean = sum_of_lanes(team, d_o.times(&of.o(at.token(at.row), at.output_column)));
        if (d_o.lane == 0) piece.mean(unit) = mean;
      });
}

/// A query and a key have the weight p = exp(score - lse) and d_s = p (d_o . v - mean) scale, times
/// the slope of a cap.
struct Pair {
  float p, d_s;

  KOKKOS_INLINE_FUNCTION Pair(float score, float lse, float d_p, float mean, float scale, float cap)
      : p(vector_exp(score - lse)), d_s(p * (d_p - mean) * scale * soft_cap_slope(score, cap)) {}
};

/// dq[n] = sum_{m seen by n} d_s[n,m] k[m]: a unit a query.
template <int held, class Storage>
void write_query_gradients(const Backward<Storage>& of, const Piece& piece) {
  for_each_unit(
      "attention_backward_queries", piece.end_unit - piece.first_unit,
      KOKKOS_LAMBDA(const Team& team) {
        const std::int64_t unit = piece.first_unit + unit_of(team);
        if (unit >= piece.end_unit) return;
        const HeadOf at(of.shape, unit);
        const int lane = lane_of(team);
        const float scale = of.scale, cap = of.shape.cap;
        Row<held> q(of.shape, lane), d_o(of.shape, lane), d_q(of.shape, lane);
        q.load(&of.q(at.token(at.row), at.query_column));
        d_o.load(&of.d_o(at.token(at.row), at.output_column));
        const int last = at.position();
        for (int m = of.shape.first_key(at.sequence, last); m <= last; ++m) {
          const Storage* const k = &of.keys(at.key(m), at.key_column);
          const float score = soft_cap(scale * sum_of_lanes(team, q.times(k)), cap);
          const float d_p = sum_of_lanes(team, d_o.times(&of.keys(at.key(m), at.value_column)));
          d_q.add(Pair(score, of.lse(unit), d_p, piece.mean(unit), scale, cap).d_s, k);
        }
        d_q.store(&of.d_q(at.token(at.row), at.query_column));
      });
}

/// dk[m] = sum_h sum_n d_s[n,m] q[n] and dv[m] = sum_h sum_n p[n,m] d_o[n] over the query heads of
/// a key head, in their order, and the queries that see the key: a unit a key.
template <int held, class Storage>
void write_key_gradients(const Backward<Storage>& of, const Piece& piece) {
  const int key_heads = of.shape.keys(), seq_len = of.shape.seq_len;
  const std::int64_t first = piece.first_key * seq_len, end = piece.end_key * seq_len;
  for_each_unit(
      "attention_backward_keys", end - first, KOKKOS_LAMBDA(const Team& team) {
        const std::int64_t unit = first + unit_of(team);
        if (unit >= end) return;
        const int sequence = int(unit / seq_len / key_heads), m = int(unit % seq_len);
        const int key_head = int(unit / seq_len % key_heads), lane = lane_of(team);
        const float scale = of.scale, cap = of.shape.cap;
        const Zigzag& zigzag = of.shape.zigzag;
        const std::int64_t token = std::int64_t(sequence) * seq_len + zigzag.row(m);
        const int queries = of.shape.queries();
        const int key_column = key_head * of.shape.head_dim;
        const int value_column = key_column + key_heads * of.shape.head_dim;
        Row<held> k(of.shape, lane), v(of.shape, lane), d_k(of.shape, lane), d_v(of.shape, lane);
        k.load(&of.keys(token, key_column));
        v.load(&of.keys(token, value_column));
        for (int h = 0; h < of.shape.heads; ++h) {
          if (of.shape.key_head(h) != key_head) continue;
          const HeadOf at(of.shape, sequence, h, m);
          const std::int64_t head = (std::int64_t(sequence) * of.shape.heads + h) * queries;
          for (int n = zigzag.first_row(m); n < queries; ++n) {
            if (of.shape.first_key(sequence, zigzag.position(n)) > m) break;
            const Storage* const q = &of.q(at.token(n), at.query_column);
            const Storage* const d_o = &of.d_o(at.token(n), at.output_column);
            const float score = soft_cap(scale * sum_of_lanes(team, k.times(q)), cap);
            const float d_p = sum_of_lanes(team, v.times(d_o));
            const Pair pair(score, of.lse(head + n), d_p, piece.mean(head + n), scale, cap);
            d_v.add(pair.p, d_o);
            d_k.add(pair.d_s, q);
          }
        }
        d_k.store(&of.d_keys(token, key_column));
        d_v.store(&of.d_keys(token, value_column));
      });
}

}  // namespace

template <class Storage>
void attention_backward(const AttentionShape& shape, ConstMatrixOf<Storage> qkv,
                        ConstMatrixOf<Storage> o, ConstVector lse, ConstMatrixOf<Storage> d_o,
                        MatrixOf<Storage> dqkv, ConstMatrixOf<Storage> keys,
                        MatrixOf<Storage> d_keys) {
  promise_attention("attention_backward", shape, qkv, o, lse, keys);
  promise(same_extents(dqkv, qkv) && same_extents(d_o, o) && same_extents(d_keys, keys),
          "attention_backward", "dqkv must be as qkv, d_o as o, d_keys as keys");
  if constexpr (sizeof(Storage) == 2) {
    FusedOperands operands = fused_operands<Storage>(qkv, o, lse);
    operands.d_o = fused_rows(d_o), operands.dqkv = fused_rows(dqkv);
    if (!shape.zigzag.cuts() && fused_attention(Pass::backward, shape, operands)) return;
  }
  if (!shape.zigzag.cuts()) keys = keys_beside(qkv, shape), d_keys = keys_beside(dqkv, shape);
  const Backward<Storage> of{shape, qkv, keys, o, d_o, lse, dqkv, d_keys, shape.score_scale()};
  const std::int64_t key_heads = std::int64_t(shape.batch) * shape.keys();
  with_features_held("attention_backward", shape, [&](auto held) {
    constexpr int room = decltype(held)::value;
    for (std::int64_t key = 0; key < key_heads;) {
      const Piece piece = piece_from(shape, key);
      write_means<room>(of, piece);
      write_query_gradients<room>(of, piece);
      write_key_gradients<room>(of, piece);
      key = piece.end_key;
    }
  });
}

template void attention_backward<float>(const AttentionShape&, ConstMatrix, ConstMatrix,
                                        ConstVector, ConstMatrix, Matrix, ConstMatrix, Matrix);
template void attention_backward<bfloat16>(const AttentionShape&, ConstMatrixOf<bfloat16>,
                                           ConstMatrixOf<bfloat16>, ConstVector,
                                           ConstMatrixOf<bfloat16>, MatrixOf<bfloat16>,
                                           ConstMatrixOf<bfloat16>, MatrixOf<bfloat16>);
template void attention_backward<float16>(const AttentionShape&, ConstMatrixOf<float16>,
                                          ConstMatrixOf<float16>, ConstVector,
                                          ConstMatrixOf<float16>, MatrixOf<float16>,
                                          ConstMatrixOf<float16>, MatrixOf<float16>);

}  // namespace brume::kernels
