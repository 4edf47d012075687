#include "kernels/latent.hpp"

#include "kernels/portable/launch.hpp"

namespace brume::kernels {

template <class Storage>
void expand_keys(ConstMatrixOf<Storage> parts, const LatentShape& shape, MatrixOf<Storage> qkv,
                 ConstMatrixOf<Storage> turned) {
  promise_expansion("expand_keys", parts, shape, qkv, turned);
  const bool apart = turned.data() != nullptr;
  const int queries = apart ? 0 : shape.queries();
  for_each_row(
      "expand_keys", parts.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank();
        const auto key = [&](int h, int c) {
          if (c < shape.turned)
            return apart ? turned(n, c) : parts(n, shape.parts() - shape.turned + c);
          return parts(n, queries + h * shape.pair() + c - shape.turned);
        };
        const auto value = [&](int h, int c) {
          return c < shape.value_dim ? parts(n, queries + h * shape.pair() + shape.still() + c)
                                     : Storage(0.0f);
        };
        along(
            team, queries + 2 * shape.queries(),
            [&](int i) {
              const int column = i % shape.queries();
              const int h = column / shape.head_dim, c = column % shape.head_dim;
              if (i < queries) return parts(n, i);
              return i < queries + shape.queries() ? key(h, c) : value(h, c);
            },
            [&](int i, Storage x) { qkv(n, i) = x; });
      });
}

template <class Storage>
void expand_keys_backward(ConstMatrixOf<Storage> d_qkv, const LatentShape& shape,
                          MatrixOf<Storage> d_parts, MatrixOf<Storage> d_turned) {
  promise_expansion("expand_keys_backward", d_parts, shape, d_qkv, d_turned);
  const bool apart = d_turned.data() != nullptr;
  const int keys = apart ? 0 : shape.queries();
  for_each_row(
      "expand_keys_backward", d_qkv.extent(0), KOKKOS_LAMBDA(const Team& team) {
        const int n = team.league_rank(), turned = keys + shape.heads * shape.pair();
        const auto of_pair = [&](int column) {
          const int first = keys + column / shape.pair() * shape.head_dim,
                    c = column % shape.pair();
          return d_qkv(n, c < shape.still() ? first + shape.turned + c
                                            : first + shape.queries() + c - shape.still());
        };
        along(
            team, turned + shape.turned,
            [&](int i) {
              if (i < keys) return float(d_qkv(n, i));
              const int c = i - turned;
              if (c < 0) return float(of_pair(i - keys));
              float sum = 0.0f;
              for (int h = 0; h < shape.heads; ++h)
                sum += float(d_qkv(n, keys + h * shape.head_dim + c));
              return sum;
            },
            [&](int i, float x) {
              (apart && i >= turned ? d_turned(n, i - turned) : d_parts(n, i)) = Storage(x);
            });
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
