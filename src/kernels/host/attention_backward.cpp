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
    const std::int64_t query = tile.first_query + r;
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
  const Factor q{in.q, in.stride}, k{in.k, in.stride}, v{in.v, in.stride};
  const Factor d_o{output.d_o, output.d_o_stride};
  scores_of(tile, head_dim, shape.score_scale(), q, k, p);
  scores_of(tile, head_dim, 1.0f, d_o, v, d_s);
  softmax_backward_tile(tile, shape, output, p, d_s);
  add_tile_transposed_times(tile, head_dim, p, d_o, grad.v, grad.stride);
  add_tile_transposed_times(tile, head_dim, d_s, q, grad.k, grad.stride);
  add_tile_times(tile, head_dim, d_s, k, grad.q, grad.stride);
}

void backward_head(const AttentionShape& shape, const Head<const float>& in, const Output& output,
                   const Head<float>& grad) {
  for (int first_key = 0; first_key < shape.seq_len; first_key += key_block)
    for (int first_query = first_key; first_query < shape.seq_len; first_query += query_block) {
      if (shape.first_key(in.sequence, first_query) >= first_key + key_block)
        break;  // as do all later ones
      backward_tile(tile_at(shape, in.sequence, first_query, first_key), shape, in, output, grad);
    }
}

void backward(const AttentionShape& shape, int b, int h, const ConstMatrix& qkv,
              const ConstMatrix& o, const ConstVector& lse, const ConstMatrix& d_o,
              const Matrix& dqkv) {
  const std::int64_t token = std::int64_t(b) * shape.seq_len;
  const int column = h * shape.head_dim;
  const Output output{&o(token, column), std::int64_t(o.stride(0)), &d_o(token, column),
                      std::int64_t(d_o.stride(0)),
                      lse.data() + (std::int64_t(b) * shape.heads + h) * shape.seq_len};
  backward_head(shape, head_of(qkv, shape, b, h), output, head_of(dqkv, shape, b, h));
}

/// All query heads of a key head, in order: they add to the same gradient.
void backward_group(const AttentionShape& shape, int b, int key_head, const ConstMatrix& qkv,
                    const ConstMatrix& o, const ConstVector& lse, const ConstMatrix& d_o,
                    const Matrix& dqkv) {
  for (int h = 0; h < shape.heads; ++h)
    if (shape.key_head(h) == key_head) backward(shape, b, h, qkv, o, lse, d_o, dqkv);
}

/// The same by tiles. @return false if fp32 copies must do it
bool backward_group_by_tiles(const AttentionShape& shape, int b, int key_head,
                             const ConstMatrixOf<bfloat16>& qkv, const ConstMatrixOf<bfloat16>& o,
                             const ConstVector& lse, const ConstMatrixOf<bfloat16>& d_o,
                             const MatrixOf<bfloat16>& dqkv) {
  std::optional<TiledBackward> tiled;
  std::optional<Head<bfloat16>> grad;
  for (int h = 0; h < shape.heads; ++h) {
    if (shape.key_head(h) != key_head) continue;
    const std::int64_t token = std::int64_t(b) * shape.seq_len;
    const int column = h * shape.head_dim;
    const Head in = head_of(qkv, shape, b, h);
    grad = head_of(dqkv, shape, b, h);
    if (!tiled) tiled.emplace(shape, in);
    if (!tiled->add_head(in,
                         {&o(token, column), std::int64_t(o.stride(0)), &d_o(token, column),
                          std::int64_t(d_o.stride(0)),
                          lse.data() + (std::int64_t(b) * shape.heads + h) * shape.seq_len},
                         grad->q, grad->stride))
      return false;
  }
  if (tiled) tiled->store(*grad);
  return true;
}

/// The same on fp32 copies: gradients are rounded once, after the last addition.
template <Narrow Storage>
void backward_group(const AttentionShape& shape, int b, int key_head,
                    const MatrixView<const Storage>& qkv, const MatrixView<const Storage>& o,
                    const ConstVector& lse, const MatrixView<const Storage>& d_o,
                    const MatrixView<Storage>& dqkv) {
  if constexpr (std::is_same_v<Storage, bfloat16>)
    if (has_tile_registers() && backward_group_by_tiles(shape, b, key_head, qkv, o, lse, d_o, dqkv))
      return;
  enum { q, k, v, d_q, d_k, d_v, out, d_out, arrays };
  WideHead wide(shape, arrays);
  wide.clear(d_k), wide.clear(d_v);
  for (int h = 0; h < shape.heads; ++h) {
    if (shape.key_head(h) != key_head) continue;
    const std::int64_t token = std::int64_t(b) * shape.seq_len;
    const Head in = head_of(qkv, shape, b, h);
    const Head grad = head_of(dqkv, shape, b, h);
    wide.load(q, in.q, in.stride), wide.load(k, in.k, in.stride), wide.load(v, in.v, in.stride);
    wide.load(out, &o(token, h * shape.head_dim), o.stride(0));
    wide.load(d_out, &d_o(token, h * shape.head_dim), d_o.stride(0));
    wide.clear(d_q);
    const Head<float> head = wide.head(q, b);
    backward_head(shape, {head.q, head.k, head.v, head.stride, b},
                  {wide.at(out), head.stride, wide.at(d_out), head.stride,
                   lse.data() + (std::int64_t(b) * shape.heads + h) * shape.seq_len},
                  wide.head(d_q, b));
    wide.store(d_q, grad.q, grad.stride);
    wide.store(d_k, grad.k, grad.stride), wide.store(d_v, grad.v, grad.stride);
  }
}

}  // namespace

template <class Storage>
void attention_backward(const AttentionShape& shape, ConstMatrixOf<Storage> qkv,
                        ConstMatrixOf<Storage> o, ConstVector lse, ConstMatrixOf<Storage> d_o,
                        MatrixOf<Storage> dqkv) {
  promise_attention("attention_backward", shape, qkv, o, lse);
  promise(same_extents(dqkv, qkv) && same_extents(d_o, o), "attention_backward",
          "dqkv must be as qkv, d_o as o");
  for_each("attention_backward_clear", dqkv.extent(0),
           [=](std::int64_t n) { std::fill_n(&dqkv(n, 0), dqkv.extent(1), Storage(0.0f)); });
  const std::int64_t units = std::int64_t(shape.batch) * shape.keys();
  for_each("attention_backward", units, [=](std::int64_t unit) {
    backward_group(shape, int(unit / shape.keys()), int(unit % shape.keys()), qkv, o, lse, d_o,
                   dqkv);
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
