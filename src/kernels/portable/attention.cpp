#include "kernels/attention.hpp"

#include <cmath>

#include "kernels/portable/attention_rows.hpp"

namespace brume::kernels {
namespace {

/// A warp a query, which goes over the keys that it sees.
template <int held, class Storage>
void forward(const AttentionShape& shape, const ConstMatrixOf<Storage>& qkv,
             const MatrixOf<Storage>& o, const Vector& lse) {
  const std::int64_t units = std::int64_t(shape.batch) * shape.heads * shape.seq_len;
  for_each_warp(
      "attention_forward", units, KOKKOS_LAMBDA(const Team& team) {
        const std::int64_t unit = warp_unit(team);
        if (unit >= units) return;
        const HeadOf at(shape, unit);
        const int lane = lane_of(team);
        const float scale = 1.0f / std::sqrt(float(shape.head_dim));
        Row<held> q(shape, lane), sum(shape, lane);
        q.load(&qkv(at.token(at.row), at.query_column));
        Running running;
        for (int first = 0; first <= at.row; first += keys_at_once) {
          const int here = at.row - first < keys_at_once ? at.row - first + 1 : keys_at_once;
          float weights[keys_at_once];
          for (int k = 0; k < here; ++k)
            weights[k] =
                scale * sum_of_lanes(team, q.times(&qkv(at.token(first + k), at.key_column)));
          sum.scale(running.weigh(weights, here));
          for (int k = 0; k < here; ++k)
            sum.add(weights[k], &qkv(at.token(first + k), at.value_column));
        }
        sum.scale(1.0f / running.sum);
        sum.store(&o(at.token(at.row), at.output_column));
        if (lane == 0) lse(unit) = running.top + std::log(running.sum);
      });
}

}  // namespace

template <class Storage>
void attention_forward(const AttentionShape& shape, ConstMatrixOf<Storage> qkv, MatrixOf<Storage> o,
                       Vector lse) {
  promise_attention("attention_forward", shape, qkv, o, lse);
  with_features_held("attention_forward", shape, [&](auto held) {
    forward<decltype(held)::value, Storage>(shape, qkv, o, lse);
  });
}

template void attention_forward<float>(const AttentionShape&, ConstMatrix, Matrix, Vector);
template void attention_forward<bfloat16>(const AttentionShape&, ConstMatrixOf<bfloat16>,
                                          MatrixOf<bfloat16>, Vector);

}  // namespace brume::kernels
