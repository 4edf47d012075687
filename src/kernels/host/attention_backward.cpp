#include "kernels/attention.hpp"

#include <optional>
#include <type_traits>

#include "kernels/host/attention_by_tiles.hpp"
#include "kernels/host/attention_tile.hpp"
#include "kernels/host/tiles.hpp"
#include "kernels/vector_math.hpp"

namespace brume::kernels {
namespace {

/// The forward output of one head and the gradient that came for it.
struct Output {
  const float* o;
  std::int64_t o_stride;
  const float* d_o;
  std::int64_t d_o_stride;
  const float* lse;
};

/// scores -> p = exp(scores - lse);  d_p -> d_s = p (d_p - sum_d d_o o) scale
void softmax_backward_tile(const Tile& tile, const AttentionShape& shape, const Output& output,
                           float* scores, float* d_p) {
  const int head_dim = shape.head_dim;
  const float scale = shape.score_scale(), cap = shape.cap;
  for (int r = 0; r < tile.rows; ++r) {
    const std::int64_t query = tile.query_row + r;
    const float* const o = output.o + query * output.o_stride;
    const float* const d_o = output.d_o + query * output.d_o_stride;
    const float mean = sum_terms(head_dim, [=](int d) { return o[d] * d_o[d]; });
    const float lse = output.lse[query];
    float* const p = scores + r * key_block;
    float* const ds = d_p + r * key_block;
    cap_scores(tile, r, cap, p);
    if (cap > 0.0f) {
#pragma omp simd
      for (int c = tile.begin[r]; c < end_of_keys(tile, r); ++c)
        ds[c] = (ds[c] - mean) * soft_cap_slope(p[c], cap) + mean;
    }
    const int visible = hide_others(tile, r, p, -INFINITY);
    hide_others(tile, r, ds, 0.0f);
#pragma omp simd
    for (int c = 0; c < visible; ++c) {
      p[c] = vector_exp(p[c] - lse);
      ds[c] = p[c] * (ds[c] - mean) * scale;
    }
  }
}

void backward_tile(const Tile& tile, const AttentionShape& shape, const Head<const float>& in,
                   const Output& output, const Head<float>& grad) {
  const int head_dim = shape.head_dim;
  alignas(Lanes) float p[score_floats];
  alignas(Lanes) float d_s[score_floats];
  const Factor q{in.q, in.stride}, k{in.k, in.key_stride}, v{in.v, in.key_stride};
  const Factor d_o{output.d_o, output.d_o_stride};
  scores_of(tile, head_dim, shape.score_scale(), q, k, p);
  scores_of(tile, head_dim, 1.0f, d_o, v, d_s);
  softmax_backward_tile(tile, shape, output, p, d_s);
  add_tile_transposed_times(tile, head_dim, p, d_o, grad.v, grad.key_stride);
  add_tile_transposed_times(tile, head_dim, d_s, q, grad.k, grad.key_stride);
  add_tile_times(tile, head_dim, d_s, k, grad.q, grad.stride);
}

void backward_head(const AttentionShape& shape, const Head<const float>& in, const Output& output,
                   const Head<float>& grad) {
  for (int first_key = 0, end; first_key < shape.seq_len; first_key = end) {
    end = end_of_tile(shape, first_key);
    for (int block = 0; block < query_blocks(shape); ++block) {
      const int row = row_of_block(shape, block), first_query = shape.zigzag.position(row);
      if (end_of_queries(shape, first_query) <= first_key) continue;
      if (shape.first_key(in.sequence, first_query) >= end) break;  // as do all later ones
      backward_tile(tile_at(shape, in.sequence, row, first_key), shape, in, output, grad);
    }
  }
}

/// The operands of a backward in views of one element, with the gradients to write.
template <class Storage>
struct Operands {
  ConstMatrixOf<Storage> q, keys, o;
  ConstVector lse;
  ConstMatrixOf<Storage> d_o;
  MatrixOf<Storage> d_q, d_keys;

  Head<const Storage> head(const AttentionShape& shape, int b, int h) const {
    return head_of(q, keys, shape, b, h);
  }
  Head<Storage> grad(const AttentionShape& shape, int b, int h) const {
    return head_of(d_q, d_keys, shape, b, h);
  }
  /// The output's rows of a head, or their gradient.
  const Storage* rows(const ConstMatrixOf<Storage>& all, const AttentionShape& shape, int b,
                      int h) const {
    return &all(std::int64_t(b) * shape.queries(), h * shape.head_dim);
  }
  const float* lse_of(const AttentionShape& shape, int b, int h) const {
    return lse.data() + (std::int64_t(b) * shape.heads + h) * shape.queries();
  }
};

/// All query heads of a key head, in order: they add to the same gradient.
void backward_group(const AttentionShape& shape, int b, int key_head, const Operands<float>& of) {
  for (int h = 0; h < shape.heads; ++h)
    if (shape.key_head(h) == key_head)
      backward_head(
          shape, of.head(shape, b, h),
          {of.rows(of.o, shape, b, h), std::int64_t(of.o.stride(0)), of.rows(of.d_o, shape, b, h),
           std::int64_t(of.d_o.stride(0)), of.lse_of(shape, b, h)},
          of.grad(shape, b, h));
}

/// The same by tiles. @return false if fp32 copies must do it
bool backward_group_by_tiles(const AttentionShape& shape, int b, int key_head,
                             const Operands<bfloat16>& of) {
  std::optional<TiledBackward> tiled;
  std::optional<Head<bfloat16>> grad;
  for (int h = 0; h < shape.heads; ++h) {
    if (shape.key_head(h) != key_head) continue;
    const Head in = of.head(shape, b, h);
    grad = of.grad(shape, b, h);
    if (!tiled) tiled.emplace(shape, in);
    if (!tiled->add_head(
            in,
            {of.rows(of.o, shape, b, h), std::int64_t(of.o.stride(0)), of.rows(of.d_o, shape, b, h),
             std::int64_t(of.d_o.stride(0)), of.lse_of(shape, b, h)},
            grad->q, grad->stride))
      return false;
  }
  if (tiled) tiled->store(*grad);
  return true;
}

/// The same on fp32 copies: gradients are rounded once, after the last addition.
template <Narrow Storage>
void backward_group(const AttentionShape& shape, int b, int key_head, const Operands<Storage>& of) {
  if constexpr (std::is_same_v<Storage, bfloat16>)
    if (has_tile_registers() && backward_group_by_tiles(shape, b, key_head, of)) return;
  enum { q, k, v, d_q, d_k, d_v, out, d_out, arrays };
  WideHead wide(shape, arrays);
  wide.clear(d_k), wide.clear(d_v);
  for (int h = 0; h < shape.heads; ++h) {
    if (shape.key_head(h) != key_head) continue;
    const Head in = of.head(shape, b, h);
    const Head grad = of.grad(shape, b, h);
    wide.load(q, in.q, in.stride);
    wide.load_keys(k, in.k, in.key_stride), wide.load_keys(v, in.v, in.key_stride);
    wide.load(out, of.rows(of.o, shape, b, h), of.o.stride(0));
    wide.load(d_out, of.rows(of.d_o, shape, b, h), of.d_o.stride(0));
    wide.clear(d_q);
    const Head<float> head = wide.head(q, b);
    backward_head(shape, {head.q, head.k, head.v, head.stride, head.key_stride, b},
                  {wide.at(out), head.stride, wide.at(d_out), head.stride, of.lse_of(shape, b, h)},
                  wide.head(d_q, b));
    wide.store(d_q, grad.q, grad.stride);
    wide.store_keys(d_k, grad.k, grad.key_stride), wide.store_keys(d_v, grad.v, grad.key_stride);
  }
}

/// x[n,:] = 0 for the first `columns`.
template <class Storage>
void clear(const MatrixOf<Storage>& x, std::size_t columns) {
  for_each("attention_backward_clear", x.extent(0),
           [=](std::int64_t n) { std::fill_n(&x(n, 0), columns, Storage(0.0f)); });
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
  const bool apart = keys.data() != nullptr;
  clear<Storage>(dqkv, apart ? o.extent(1) : dqkv.extent(1));
  if (apart) clear<Storage>(d_keys, d_keys.extent(1));
  const Operands<Storage> of{.q = qkv,
                             .keys = apart ? keys : keys_beside(qkv, shape),
                             .o = o,
                             .lse = lse,
                             .d_o = d_o,
                             .d_q = dqkv,
                             .d_keys = apart ? d_keys : keys_beside(dqkv, shape)};
  const std::int64_t units = std::int64_t(shape.batch) * shape.keys();
  for_each("attention_backward", units, [=](std::int64_t unit) {
    backward_group(shape, int(unit / shape.keys()), int(unit % shape.keys()), of);
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
