#include "kernels/latent.hpp"

#include <algorithm>

#include "kernels/host/loops.hpp"

namespace brume::kernels {

template <class Storage>
void expand_keys(ConstMatrixOf<Storage> parts, const LatentShape& shape, MatrixOf<Storage> qkv,
                 ConstMatrixOf<Storage> turned_keys) {
  promise_expansion("expand_keys", parts, shape, qkv, turned_keys);
  const bool apart = turned_keys.data() != nullptr;
  const int queries = apart ? 0 : shape.queries();
  for_each("expand_keys", parts.extent_int(0), [=](std::int64_t n) {
    const Storage* const x = &parts(n, 0);
    const Storage* const turned = apart ? &turned_keys(n, 0) : x + shape.parts() - shape.turned;
    Storage* const y = &qkv(n, 0);
    std::copy_n(x, queries, y);
    for (int h = 0; h < shape.heads; ++h) {
      const Storage* const pair = x + queries + h * shape.pair();
      Storage* const key = y + queries + h * shape.head_dim;
      Storage* const value = key + shape.queries();
      std::copy_n(turned, shape.turned, key);
      std::copy_n(pair, shape.still(), key + shape.turned);
      std::copy_n(pair + shape.still(), shape.value_dim, value);
      std::fill(value + shape.value_dim, value + shape.head_dim, Storage(0.0f));
    }
  });
}

template <class Storage>
void expand_keys_backward(ConstMatrixOf<Storage> d_qkv, const LatentShape& shape,
                          MatrixOf<Storage> d_parts, MatrixOf<Storage> d_turned) {
  promise_expansion("expand_keys_backward", d_parts, shape, d_qkv, d_turned);
  const bool apart = d_turned.data() != nullptr;
  const int queries = apart ? 0 : shape.queries();
  for_each("expand_keys_backward", d_qkv.extent_int(0), [=](std::int64_t n) {
    const Storage* const dy = &d_qkv(n, 0);
    const Storage* const keys = dy + queries;
    Storage* const dx = &d_parts(n, 0);
    std::copy_n(dy, queries, dx);
    for (int h = 0; h < shape.heads; ++h) {
      const Storage* const key = keys + h * shape.head_dim;
      Storage* const pair = dx + queries + h * shape.pair();
      std::copy_n(key + shape.turned, shape.still(), pair);
      std::copy_n(key + shape.queries(), shape.value_dim, pair + shape.still());
    }
    Storage* const turned = apart ? &d_turned(n, 0) : dx + shape.parts() - shape.turned;
    for (int c = 0; c < shape.turned; ++c) {
      float sum = 0.0f;
      for (int h = 0; h < shape.heads; ++h) sum += float(keys[h * shape.head_dim + c]);
      turned[c] = Storage(sum);
    }
  });
}

template <class Storage>
void narrow_values(ConstMatrixOf<Storage> wide, const LatentShape& shape,
                   MatrixOf<Storage> narrow) {
  promise_latent("narrow_values", wide, shape.queries(), narrow, shape.heads * shape.value_dim);
  for_each("narrow_values", wide.extent_int(0), [=](std::int64_t n) {
    for (int h = 0; h < shape.heads; ++h)
      std::copy_n(&wide(n, h * shape.head_dim), shape.value_dim, &narrow(n, h * shape.value_dim));
  });
}

template <class Storage>
void narrow_values_backward(ConstMatrixOf<Storage> d_narrow, const LatentShape& shape,
                            MatrixOf<Storage> d_wide) {
  promise_latent("narrow_values_backward", d_wide, shape.queries(), d_narrow,
                 shape.heads * shape.value_dim);
  for_each("narrow_values_backward", d_narrow.extent_int(0), [=](std::int64_t n) {
    for (int h = 0; h < shape.heads; ++h) {
      Storage* const head = &d_wide(n, h * shape.head_dim);
      std::copy_n(&d_narrow(n, h * shape.value_dim), shape.value_dim, head);
      std::fill(head + shape.value_dim, head + shape.head_dim, Storage(0.0f));
    }
  });
}

template <class Storage>
void copy_latents(ConstMatrixOf<Storage> parts, const LatentShape& shape, MatrixOf<Storage> heads) {
  promise_latent("copy_latents", parts, shape.latent_parts(), heads, shape.latent_columns());
  for_each("copy_latents", parts.extent_int(0), [=](std::int64_t n) {
    const Storage* const latent = &parts(n, 0);
    const Storage* const queries = latent + shape.kept();
    Storage* const y = &heads(n, 0);
    for (int h = 0; h < shape.heads; ++h)
      std::copy_n(queries + h * shape.head_dim, shape.turned, y + h * shape.kept());
    for (const int place : {shape.heads, shape.heads + 1}) {
      Storage* const one = y + place * shape.kept();
      std::copy_n(latent, shape.rank, std::copy_n(latent + shape.rank, shape.turned, one));
    }
  });
}

}  // namespace brume::kernels

#include "kernels/instances/latent.hpp"
