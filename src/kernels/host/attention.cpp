#include "kernels/attention.hpp"

#include <cmath>

#include "kernels/host/attention_by_tiles.hpp"
#include "kernels/host/attention_tile.hpp"
#include "kernels/host/tiles.hpp"
#include "kernels/vector_math.hpp"

namespace brume::kernels {
namespace {

/// What streaming softmax knows about the queries of one block.
struct Running {
  std::array<float, query_block> top;    // largest score so far
  std::array<float, query_block> sum{};  // of exp(score - top) so far; 0 before the first

  explicit Running(const float* sink) {
    if (sink != nullptr) top.fill(*sink), sum.fill(1.0f);
  }
};

/// scores -> exp(scores - top); `out` rows [rows, D] so far are scaled to the new top.
void softmax_tile(const Tile& tile, const AttentionShape& shape, float* scores, float* out,
                  std::int64_t stride, Running& running) {
  const int head_dim = shape.head_dim;
  for (int r = 0; r < tile.rows; ++r) {
    float* const row = scores + r * key_block;
    if (tile.begin[r] >= end_of_keys(tile, r)) continue;
    cap_scores(tile, r, shape.cap, row);
    const int visible = hide_others(tile, r, row, -INFINITY);
    const bool first = running.sum[r] == 0.0f;
    const float here = largest(row, visible);
    const float top = first ? here : std::max(here, running.top[r]);
    const float sum = sum_terms(visible, [=](int c) { return row[c] = vector_exp(row[c] - top); });
    const float shrink = first ? 0.0f : vector_exp(running.top[r] - top);
    running.sum[r] = first ? sum : running.sum[r] * shrink + sum;
    running.top[r] = top;
    if (first || shrink == 1.0f) continue;
    float* const o = out + r * stride;
#pragma omp simd
    for (int d = 0; d < head_dim; ++d) o[d] *= shrink;
  }
}

/// One block of queries of one head: rows of `out` and `lse` from `first_row` on.
///
/// @param sink  the head's; null: none
void forward_block(const AttentionShape& shape, const Head<const float>& in, const float* sink,
                   int first_row, float* out, std::int64_t stride, float* lse) {
  const int head_dim = shape.head_dim;
  alignas(Lanes) float scores[score_floats];
  Running running(sink);
  const int first_query = shape.zigzag.position(first_row);
  const int last_query = end_of_queries(shape, first_query), rows = last_query - first_query;
  for (int r = 0; r < rows; ++r) std::fill_n(out + (first_row + r) * stride, head_dim, 0.0f);
  for (int first_key = tile_of_key(shape, shape.first_key(in.sequence, first_query));
       first_key < last_query; first_key = end_of_tile(shape, first_key)) {
    const Tile tile = tile_at(shape, in.sequence, first_row, first_key);
    scores_of(tile, head_dim, shape.score_scale(), {in.q, in.stride}, {in.k, in.key_stride},
              scores);
    softmax_tile(tile, shape, scores, out + first_row * stride, stride, running);
    add_tile_times(tile, head_dim, scores, {in.v, in.key_stride}, out, stride);
  }
  for (int r = 0; r < rows; ++r) {
    float* const o = out + (first_row + r) * stride;
    const float share = 1.0f / running.sum[r];
#pragma omp simd
    for (int d = 0; d < head_dim; ++d) o[d] *= share;
    lse[first_row + r] = running.top[r] + std::log(running.sum[r]);
  }
}

void forward(const AttentionShape& shape, const ConstMatrix& q, const ConstMatrix& keys,
             const Matrix& o, const Vector& lse, const ConstVector& sinks) {
  const int blocks = query_blocks(shape);
  const std::int64_t units = std::int64_t(shape.batch) * shape.heads * blocks;
  for_each("attention_forward", units, [=](std::int64_t unit) {
    const int block = int(unit % blocks);
    const int h = int(unit / blocks % shape.heads), b = int(unit / blocks / shape.heads);
    float* const out = &o(std::int64_t(b) * shape.queries(), h * shape.head_dim);
    float* const sums = lse.data() + (std::int64_t(b) * shape.heads + h) * shape.queries();
    const float* const sink = sinks.data() != nullptr ? &sinks(h) : nullptr;
    forward_block(shape, head_of(q, keys, shape, b, h), sink, row_of_block(shape, block), out,
                  o.stride(0), sums);
  });
}

/// The forward of 16-bit storage: by tiles, or on fp32 copies of one head at a time.
template <Narrow Storage>
void forward(const AttentionShape& shape, const MatrixView<const Storage>& q,
             const MatrixView<const Storage>& keys, const MatrixView<Storage>& o, const Vector& lse,
             const ConstVectorOf<Storage>& sinks) {
  for_each("attention_forward", std::int64_t(shape.batch) * shape.heads, [=](std::int64_t unit) {
    const int h = int(unit % shape.heads), b = int(unit / shape.heads);
    const Head in = head_of(q, keys, shape, b, h);
    Storage* const out = &o(std::int64_t(b) * shape.queries(), h * shape.head_dim);
    const bool has_sink = sinks.data() != nullptr;
    const float own_sink = has_sink ? float(sinks(h)) : 0.0f;
    const float* const sink = has_sink ? &own_sink : nullptr;
    if constexpr (std::is_same_v<Storage, bfloat16>)
      if (has_tile_registers() && forward_by_tiles(shape, in, sink, out, std::int64_t(o.stride(0)),
                                                   lse.data() + unit * shape.queries()))
        return;
    WideHead wide(shape, 4);
    wide.load(0, in.q, in.stride);
    wide.load_keys(1, in.k, in.key_stride), wide.load_keys(2, in.v, in.key_stride);
    const Head<float> head = wide.head(0, b);
    for (int block = 0; block < query_blocks(shape); ++block)
      forward_block(shape, {head.q, head.k, head.v, head.stride, head.key_stride, b}, sink,
                    row_of_block(shape, block), wide.at(3), head.stride,
                    lse.data() + unit * shape.queries());
    wide.store(3, out, o.stride(0));
  });
}

}  // namespace

template <class Storage>
void attention_forward(const AttentionShape& shape, ConstMatrixOf<Storage> qkv, MatrixOf<Storage> o,
                       Vector lse, ConstVectorOf<Storage> sinks, ConstMatrixOf<Storage> keys) {
  promise_attention("attention_forward", shape, qkv, o, lse, keys);
  promise_sinks("attention_forward", shape, sinks);
  forward(shape, qkv, keys.data() != nullptr ? keys : keys_beside(qkv, shape), o, lse, sinks);
}

template void attention_forward<float>(const AttentionShape&, ConstMatrix, Matrix, Vector,
                                       ConstVector, ConstMatrix);
template void attention_forward<bfloat16>(const AttentionShape&, ConstMatrixOf<bfloat16>,
                                          MatrixOf<bfloat16>, Vector, ConstVectorOf<bfloat16>,
                                          ConstMatrixOf<bfloat16>);
template void attention_forward<float16>(const AttentionShape&, ConstMatrixOf<float16>,
                                         MatrixOf<float16>, Vector, ConstVectorOf<float16>,
                                         ConstMatrixOf<float16>);

}  // namespace brume::kernels
