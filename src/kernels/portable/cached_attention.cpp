#include "kernels/cached_attention.hpp"

#include "kernels/portable/attention_rows.hpp"
#include "kernels/soft_cap.hpp"

namespace brume::kernels {
namespace {

/// Each token's keys and values go to their places; tokens without a sequence get no output.
template <class Storage>
void keep(const AttentionShape& shape, const ConstMatrixOf<Storage>& qkv,
          const KeyCache<Storage>& cache, const MatrixOf<Storage>& o) {
  const int keys = shape.keys(), head_dim = shape.head_dim, heads = shape.heads;
  for_each_row(
      "keep_keys", qkv.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank(), sequence = cache.sequences[n];
        if (sequence < 0) {
          along(team, o.extent_int(1), [&](int c) { o(n, c) = 0.0f; });
          return;
        }
        const int place = shape.documents.place(n, shape.seq_len);
        along(team, 2 * keys * head_dim, [&](int c) {
          const int head = c / head_dim;
          cache.at(shape, sequence, place, head >= keys, head % keys)[c % head_dim] =
              qkv(n, heads * head_dim + c);
        });
      });
}

/// A unit a query, which goes over the keys that it sees.
template <int held, class Storage>
void attend(const AttentionShape& shape, const ConstMatrixOf<Storage>& qkv,
            const KeyCache<Storage>& cache, const MatrixOf<Storage>& o,
            const ConstVectorOf<Storage>& sinks) {
  const std::int64_t units = std::int64_t(qkv.extent(0)) * shape.heads;
  const float scale = shape.score_scale(), cap = shape.cap;
  for_each_unit(
      "cached_attention", units, KOKKOS_LAMBDA(const Team& team) {
        const std::int64_t unit = unit_of(team);
        if (unit >= units) return;
        const int n = int(unit / shape.heads), head = int(unit % shape.heads);
        const int sequence = cache.sequences[n], key_head = shape.key_head(head);
        if (sequence < 0) return;
        const int place = shape.documents.place(n, shape.seq_len);
        Row<held> q(shape, lane_of(team)), sum(shape, lane_of(team));
        Running running = running_of(sinks, head);
        q.load(&qkv(n, head * shape.head_dim));
        const int before = shape.window > 0 ? place - shape.window + 1 : 0;
        for (int key = before > 0 ? before : 0; key <= place; ++key) {
          const Storage* const k = cache.at(shape, sequence, key, false, key_head);
          float weights[1] = {soft_cap(scale * sum_of_lanes(team, q.times(k)), cap)};
          sum.scale(running.weigh(weights));
          sum.add(weights[0], cache.at(shape, sequence, key, true, key_head));
        }
        sum.scale(1.0f / running.sum);
        sum.store(&o(n, head * shape.head_dim));
      });
}

}  // namespace

template <class Storage>
void cached_attention(const AttentionShape& shape, ConstMatrixOf<Storage> qkv,
                      const KeyCache<Storage>& cache, MatrixOf<Storage> o,
                      ConstVectorOf<Storage> sinks) {
  promise_cached_attention("cached_attention", shape, qkv, cache, o);
  promise_sinks("cached_attention", shape, sinks);
  keep<Storage>(shape, qkv, cache, o);
  with_features_held("cached_attention", shape, [&](auto held) {
    attend<decltype(held)::value, Storage>(shape, qkv, cache, o, sinks);
  });
}

}  // namespace brume::kernels

#include "kernels/instances/cached_attention.hpp"
