#include "kernels/attention.hpp"

#include <cmath>

#include "kernels/fused_attention.hpp"
#include "kernels/portable/attention_rows.hpp"

namespace brume::kernels {
namespace {

/// Forward's operands and the gradient that came for its output.
template <class Storage>
struct Backward {
  AttentionShape shape;
  ConstMatrixOf<Storage> qkv, o, d_o;
  ConstVector lse;
  MatrixOf<Storage> dqkv;
  float* means;  ///< as lse: sum_d d_o o
};

template <int held, class Storage>
void write_means(const Backward<Storage>& of, std::int64_t units) {
  for_each_unit(
      "attention_backward_means", units, KOKKOS_LAMBDA(const Team& team) {
        const std::int64_t unit = unit_of(team);
        if (unit >= units) return;
        const HeadOf at(of.shape, unit);
        Row<held> d_o(of.shape, lane_of(team));
        d_o.load(&of.d_o(at.token(at.row), at.output_column));
        const float mean = sum_of_lanes(team, d_o.times(&of.o(at.token(at.row), at.output_column)));
        if (d_o.lane == 0) of.means[unit] = mean;
      });
}

/// Of a query and a key: the weight p = exp(score - lse), and d_s = p (d_o . v - mean) / sqrt(D).
struct Pair {
  float p, d_s;

  KOKKOS_INLINE_FUNCTION Pair(float score, float lse, float d_p, float mean, float scale)
      : p(vector_exp(score - lse)), d_s(p * (d_p - mean) * scale) {}
};

/// dq[n] = sum_{m <= n} d_s[n,m] k[m]: a unit a query.
template <int held, class Storage>
void write_query_gradients(const Backward<Storage>& of, std::int64_t units) {
  for_each_unit(
      "attention_backward_queries", units, KOKKOS_LAMBDA(const Team& team) {
        const std::int64_t unit = unit_of(team);
        if (unit >= units) return;
        const HeadOf at(of.shape, unit);
        const int lane = lane_of(team);
        const float scale = 1.0f / std::sqrt(float(of.shape.head_dim));
        Row<held> q(of.shape, lane), d_o(of.shape, lane), d_q(of.shape, lane);
        q.load(&of.qkv(at.token(at.row), at.query_column));
        d_o.load(&of.d_o(at.token(at.row), at.output_column));
        for (int m = 0; m <= at.row; ++m) {
          const Storage* const k = &of.qkv(at.token(m), at.key_column);
          const float score = scale * sum_of_lanes(team, q.times(k));
          const float d_p = sum_of_lanes(team, d_o.times(&of.qkv(at.token(m), at.value_column)));
          d_q.add(Pair(score, of.lse(unit), d_p, of.means[unit], scale).d_s, k);
        }
        d_q.store(&of.dqkv(at.token(at.row), at.query_column));
      });
}

/// dk[m] = sum_h sum_{n >= m} d_s[n,m] q[n] and dv[m] = sum_h sum_{n >= m} p[n,m] d_o[n] over the
/// query heads of a key head, in their order: a unit a key.
template <int held, class Storage>
void write_key_gradients(const Backward<Storage>& of) {
  const int key_heads = of.shape.keys(), seq_len = of.shape.seq_len;
  const std::int64_t units = std::int64_t(of.shape.batch) * key_heads * seq_len;
  for_each_unit(
      "attention_backward_keys", units, KOKKOS_LAMBDA(const Team& team) {
        const std::int64_t unit = unit_of(team);
        if (unit >= units) return;
        const int sequence = int(unit / seq_len / key_heads), m = int(unit % seq_len);
        const int key_head = int(unit / seq_len % key_heads), lane = lane_of(team);
        const float scale = 1.0f / std::sqrt(float(of.shape.head_dim));
        const std::int64_t token = std::int64_t(sequence) * seq_len + m;
        const int key_column = (of.shape.heads + key_head) * of.shape.head_dim;
        const int value_column = key_column + key_heads * of.shape.head_dim;
        Row<held> k(of.shape, lane), v(of.shape, lane), d_k(of.shape, lane), d_v(of.shape, lane);
        k.load(&of.qkv(token, key_column));
        v.load(&of.qkv(token, value_column));
        for (int h = 0; h < of.shape.heads; ++h) {
          if (of.shape.key_head(h) != key_head) continue;
          const HeadOf at(of.shape, sequence, h, m);
          const std::int64_t head = (std::int64_t(sequence) * of.shape.heads + h) * seq_len;
          for (int n = m; n < seq_len; ++n) {
            const Storage* const q = &of.qkv(at.token(n), at.query_column);
            const Storage* const d_o = &of.d_o(at.token(n), at.output_column);
            const float score = scale * sum_of_lanes(team, k.times(q));
            const float d_p = sum_of_lanes(team, v.times(d_o));
            const Pair pair(score, of.lse(head + n), d_p, of.means[head + n], scale);
            d_v.add(pair.p, d_o);
            d_k.add(pair.d_s, q);
          }
        }
        d_k.store(&of.dqkv(token, key_column));
        d_v.store(&of.dqkv(token, value_column));
      });
}

}  // namespace

template <class Storage>
void attention_backward(const AttentionShape& shape, ConstMatrixOf<Storage> qkv,
                        ConstMatrixOf<Storage> o, ConstVector lse, ConstMatrixOf<Storage> d_o,
                        MatrixOf<Storage> dqkv) {
  promise_attention("attention_backward", shape, qkv, o, lse);
  promise(same_extents(dqkv, qkv) && same_extents(d_o, o), "attention_backward",
          "dqkv must be as qkv, d_o as o");
  if constexpr (sizeof(Storage) == 2) {
    FusedOperands operands = fused_operands<Storage>(qkv, o, lse);
    operands.d_o = fused_rows(d_o), operands.dqkv = fused_rows(dqkv);
    if (fused_attention(Pass::backward, shape, operands)) return;
  }
  const std::int64_t units = std::int64_t(lse.size());
  const Backward<Storage> of{shape, qkv, o, d_o, lse, dqkv, workspace_of<float>(units)};
  with_features_held("attention_backward", shape, [&](auto held) {
    constexpr int room = decltype(held)::value;
    write_means<room>(of, units);
    write_query_gradients<room>(of, units);
    write_key_gradients<room>(of);
  });
}

template void attention_backward<float>(const AttentionShape&, ConstMatrix, ConstMatrix,
                                        ConstVector, ConstMatrix, Matrix);
template void attention_backward<bfloat16>(const AttentionShape&, ConstMatrixOf<bfloat16>,
                                           ConstMatrixOf<bfloat16>, ConstVector,
                                           ConstMatrixOf<bfloat16>, MatrixOf<bfloat16>);
template void attention_backward<float16>(const AttentionShape&, ConstMatrixOf<float16>,
                                          ConstMatrixOf<float16>, ConstVector,
                                          ConstMatrixOf<float16>, MatrixOf<float16>);

}  // namespace brume::kernels
