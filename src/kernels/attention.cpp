#include "kernels/attention.hpp"

#include <cmath>

#include "kernels/attention_tile.hpp"
#include "kernels/vector_math.hpp"

namespace brume::kernels {
namespace {

/// What streaming softmax knows about the queries of one block.
struct Running {
  std::array<float, query_block> top;  // largest score so far
  std::array<float, query_block> sum;  // of exp(score - top) so far
};

/// scores -> exp(scores - top); `out` rows [rows, D] so far are scaled to the new top.
void softmax_tile(const Tile& tile, int head_dim, float* scores, float* out, std::int64_t stride,
                  Running& running) {
  Running* const all = &running;
  for_each("attention_softmax", tile.rows, [=](std::int64_t r) {
    float* const row = scores + r * key_block;
    const int visible = hide_later_keys(tile, int(r), row, -INFINITY);
    const bool first = tile.first_key == 0;
    const float here = largest(row, visible);
    const float top = first ? here : std::max(here, all->top[r]);
    const float sum = sum_terms(visible, [=](int c) { return row[c] = vector_exp(row[c] - top); });
    const float shrink = first ? 0.0f : vector_exp(all->top[r] - top);
    all->sum[r] = first ? sum : all->sum[r] * shrink + sum;
    all->top[r] = top;
    if (first || shrink == 1.0f) return;
    float* const o = out + r * stride;
#pragma omp simd
    for (int d = 0; d < head_dim; ++d) o[d] *= shrink;
  });
}

void forward_block(const Head<const float>& in, int first_query, int seq_len, int head_dim,
                   float* scores, float* out, std::int64_t stride, float* lse) {
  Running running;
  Tile tile{};
  for (int first_key = 0; first_key < std::min(first_query + query_block, seq_len);
       first_key += key_block) {
    tile = tile_at(first_query, first_key, seq_len);
    scores_of(tile, head_dim, score_scale(head_dim), {in.q, in.stride}, {in.k, in.stride}, scores);
    softmax_tile(tile, head_dim, scores, out + first_query * stride, stride, running);
    tile_times(tile, head_dim, scores, {in.v, in.stride}, first_key == 0, out, stride);
  }
  for (int r = 0; r < tile.rows; ++r) {
    float* const o = out + (first_query + r) * stride;
    const float share = 1.0f / running.sum[r];
#pragma omp simd
    for (int d = 0; d < head_dim; ++d) o[d] *= share;
    lse[first_query + r] = running.top[r] + std::log(running.sum[r]);
  }
}

}  // namespace

std::size_t attention_workspace_bytes(const AttentionShape&) {
  return 2 * tile_floats * sizeof(float);
}

void attention_forward(const AttentionShape& shape, ConstMatrix qkv, Vector workspace, Matrix o,
                       Vector lse) {
  check_attention("attention_forward", shape, qkv, o, lse, workspace);
  for (int b = 0; b < shape.batch; ++b)
    for (int h = 0; h < shape.heads; ++h) {
      const Head in = head_of(qkv, shape, b, h);
      float* const out = &o(std::int64_t(b) * shape.seq_len, h * shape.head_dim);
      float* const sums = lse.data() + (std::int64_t(b) * shape.heads + h) * shape.seq_len;
      for (int first = 0; first < shape.seq_len; first += query_block)
        forward_block(in, first, shape.seq_len, shape.head_dim, workspace.data(), out, o.stride(0),
                      sums);
    }
}

}  // namespace brume::kernels
