#include "kernels/latent.hpp"

#include "kernels/portable/launch.hpp"

namespace brume::kernels {

template <class Storage>
void expand_keys(ConstMatrixOf<Storage> parts, const LatentShape& shape, MatrixOf<Storage> qkv) {
  promise_latent("expand_keys", parts, shape.parts(), qkv, shape.columns());
  for_each_row(
      "expand_keys", parts.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank(), pairs = shape.queries();
        const auto key = [&](int h, int c) {
          return parts(n, c < shape.turned ? shape.parts() - shape.turned + c
                                           : pairs + h * shape.pair() + c - shape.turned);
        };
        const auto value = [&](int h, int c) {
          return c < shape.value_dim ? parts(n, pairs + h * shape.pair() + shape.still() + c)
                                     : Storage(0.0f);
        };
        along(
            team, shape.columns(),
            [&](int i) {
              const int column = i % shape.queries();
              const int h = column / shape.head_dim, c = column % shape.head_dim;
              if (i < shape.queries()) return parts(n, i);
              return i < 2 * shape.queries() ? key(h, c) : value(h, c);
            },
            [&](int i, Storage x) { qkv(n, i) = x; });
      });
}

template <class Storage>
void expand_keys_backward(ConstMatrixOf<Storage> d_qkv, const LatentShape& shape,
                          MatrixOf<Storage> d_parts) {
  promise_latent("expand_keys_backward", d_parts, shape.parts(), d_qkv, shape.columns());
  for_each_row(
      "expand_keys_backward", d_qkv.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank(), keys = shape.queries();
        const auto of_pair = [&](int column) {
          const int first = keys + column / shape.pair() * shape.head_dim,
                    c = column % shape.pair();
          return d_qkv(n, c < shape.still() ? first + shape.turned + c
                                            : first + shape.queries() + c - shape.still());
        };
        along(
            team, shape.parts(),
            [&](int i) {
              if (i < keys) return float(d_qkv(n, i));
              const int column = i - keys, c = column - shape.heads * shape.pair();
              if (c < 0) return float(of_pair(column));
              float sum = 0.0f;
              for (int h = 0; h < shape.heads; ++h)
                sum += float(d_qkv(n, keys + h * shape.head_dim + c));
              return sum;
            },
            [&](int i, float x) { d_parts(n, i) = Storage(x); });
      });
}

template <class Storage>
void narrow_values(ConstMatrixOf<Storage> wide, const LatentShape& shape,
                   MatrixOf<Storage> narrow) {
  const int columns = shape.heads * shape.value_dim;
  promise_latent("narrow_values", wide, shape.queries(), narrow, columns);
  for_each_row(
      "narrow_values", wide.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank();
        along(
            team, columns,
            [&](int i) {
              return wide(n, i / shape.value_dim * shape.head_dim + i % shape.value_dim);
            },
            [&](int i, Storage x) { narrow(n, i) = x; });
      });
}

template <class Storage>
void narrow_values_backward(ConstMatrixOf<Storage> d_narrow, const LatentShape& shape,
                            MatrixOf<Storage> d_wide) {
  promise_latent("narrow_values_backward", d_wide, shape.queries(), d_narrow,
                 shape.heads * shape.value_dim);
  for_each_row(
      "narrow_values_backward", d_narrow.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank();
        along(
            team, shape.queries(),
            [&](int i) {
              const int h = i / shape.head_dim, c = i % shape.head_dim;
              return c < shape.value_dim ? d_narrow(n, h * shape.value_dim + c) : Storage(0.0f);
            },
            [&](int i, Storage x) { d_wide(n, i) = x; });
      });
}

template <class Storage>
void copy_latents(ConstMatrixOf<Storage> parts, const LatentShape& shape, MatrixOf<Storage> heads) {
  promise_latent("copy_latents", parts, shape.latent_parts(), heads, shape.latent_columns());
  for_each_row(
      "copy_latents", parts.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank();
        along(
            team, shape.heads * shape.turned,
            [&](int i) {
              return parts(n, shape.kept() + i / shape.turned * shape.head_dim + i % shape.turned);
            },
            [&](int i, Storage x) {
              heads(n, i / shape.turned * shape.kept() + i % shape.turned) = x;
            });
        along(
            team, 2 * shape.kept(),
            [&](int i) {
              const int c = i % shape.kept();
              return parts(n, c < shape.turned ? shape.rank + c : c - shape.turned);
            },
            [&](int i, Storage x) { heads(n, shape.heads * shape.kept() + i) = x; });
      });
}

}  // namespace brume::kernels

#include "kernels/instances/latent.hpp"
