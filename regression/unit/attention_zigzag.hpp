/// @file Attention of ranks that share a sequence in zigzag order, one after another.
#pragma once

#include <vector>

#include "kernels/attention.hpp"

namespace brume::kernels {

/// Results of all ranks, in the sequence's order; gradients of keys, values and sinks are summed.
struct SharedAttention {
  std::vector<float> o, lse, dqkv, d_sinks;
};

/// Rows of `from` that a rank has, in its order.
template <class Storage>
std::vector<Storage> rows_of_rank(const ConstMatrixOf<Storage>& from, const Zigzag& zigzag) {
  std::vector<Storage> rows;
  for (int r = 0; r < 2 * zigzag.chunk; ++r) {
    const Storage* const row = &from(zigzag.position(r), 0);
    rows.insert(rows.end(), row, row + from.extent(1));
  }
  return rows;
}

/// @param shape  of the whole sequence
template <class Storage>
SharedAttention attend_shared(AttentionShape shape, ConstMatrixOf<Storage> qkv,
                              ConstMatrixOf<Storage> d_o, ConstVectorOf<Storage> sinks, int ranks) {
  const int T = shape.seq_len, queries = T / ranks, width = shape.heads * shape.head_dim;
  const std::size_t key_width = std::size_t(2 * shape.keys() * shape.head_dim);
  shape.zigzag = {.ranks = ranks, .chunk = queries / 2};
  std::vector<Storage> keys(std::size_t(T) * key_width), d_keys(keys.size());
  for (int m = 0; m < T; ++m)
    std::copy_n(&qkv(m, width), key_width,
                keys.begin() + std::ptrdiff_t(std::size_t(shape.zigzag.row(m)) * key_width));
  SharedAttention all{.o = std::vector<float>(std::size_t(T * width)),
                      .lse = std::vector<float>(std::size_t(T * shape.heads)),
                      .dqkv = std::vector<float>(qkv.size()),
                      .d_sinks = std::vector<float>(std::size_t(shape.heads))};
  const ConstMatrixOf<Storage> all_keys(keys.data(), std::size_t(T), key_width);
  const auto matrix = [&](auto& values, std::size_t columns) {
    return MatrixView(values.data(), values.size() / columns, columns);
  };
  for (int rank = 0; rank < ranks; ++rank) {
    shape.zigzag.rank = rank;
    const std::vector<Storage> own = rows_of_rank<Storage>(qkv, shape.zigzag),
                               own_d_o = rows_of_rank<Storage>(d_o, shape.zigzag);
    std::vector<Storage> o(own_d_o.size()), dqkv(own.size());
    std::vector<float> lse(std::size_t(queries * shape.heads)), d_sinks(all.d_sinks.size());
    const Vector sums(lse.data(), lse.size());
    attention_forward<Storage>(shape, matrix(own, qkv.extent(1)), matrix(o, d_o.extent(1)), sums,
                               sinks, all_keys);
    attention_backward<Storage>(shape, matrix(own, qkv.extent(1)), matrix(o, d_o.extent(1)), sums,
                                matrix(own_d_o, d_o.extent(1)), matrix(dqkv, qkv.extent(1)),
                                all_keys, matrix(d_keys, key_width));
    if (sinks.data() != nullptr)
      attention_backward_sinks<Storage>(shape, sinks, matrix(o, d_o.extent(1)), sums,
                                        matrix(own_d_o, d_o.extent(1)), Write::replace,
                                        Vector(d_sinks.data(), d_sinks.size()));
    for (std::size_t h = 0; h < d_sinks.size(); ++h) all.d_sinks[h] += d_sinks[h];
    for (int r = 0; r < queries; ++r) {
      const auto n = std::size_t(shape.zigzag.position(r));
      for (int c = 0; c < width; ++c) {
        all.o[n * std::size_t(width) + std::size_t(c)] = float(o[std::size_t(r * width + c)]);
        all.dqkv[n * qkv.extent(1) + std::size_t(c)] =
            float(dqkv[std::size_t(r) * qkv.extent(1) + std::size_t(c)]);
      }
      for (int h = 0; h < shape.heads; ++h)
        all.lse[std::size_t(h * T) + n] = lse[std::size_t(h * queries + r)];
    }
    for (int m = 0; m < T; ++m)
      for (std::size_t c = 0; c < key_width; ++c)
        all.dqkv[std::size_t(m) * qkv.extent(1) + std::size_t(width) + c] +=
            float(d_keys[std::size_t(shape.zigzag.row(m)) * key_width + c]);
  }
  return all;
}

}  // namespace brume::kernels
