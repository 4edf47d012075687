#include "kernels/cached_attention.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/host/causal_product.hpp"
#include "kernels/host/few_rows.hpp"
#include "kernels/host/gemm.hpp"
#include "kernels/host/loops.hpp"
#include "kernels/soft_cap.hpp"
#include "kernels/vector_math.hpp"

namespace brume::kernels {
namespace {

constexpr int most_queries = 64;  ///< queries of one unit: tokens times heads that share a key head

/// Consecutive tokens of one sequence, at consecutive places.
struct TokenRun {
  int first, count;
  int sequence, place;  ///< place: the first token's
};

/// Query heads that share a key head.
struct HeadGroup {
  int first, count;
};

/// The runs of all tokens, none longer than `longest`.
template <class Storage>
std::vector<TokenRun> runs_of(const AttentionShape& shape, const KeyCache<Storage>& cache,
                              int tokens, int longest) {
  std::vector<TokenRun> runs;
  for (int n = 0; n < tokens; ++n) {
    const int sequence = cache.sequences[n];
    if (sequence < 0) continue;
    const int place = shape.documents.place(n, shape.seq_len);
    const bool follows = !runs.empty() && runs.back().first + runs.back().count == n &&
                         runs.back().sequence == sequence &&
                         runs.back().place + runs.back().count == place &&
                         runs.back().count < longest;
    if (follows)
      ++runs.back().count;
    else
      runs.push_back({n, 1, sequence, place});
  }
  return runs;
}

/// State of streaming softmax for the queries of one unit, and their sums so far.
class Queries {
 public:
  Queries(int count, int head_dim)
      : head_dim_(head_dim),
        q_(std::size_t(count) * head_dim),
        sums_(q_.size()),
        top_(std::size_t(count)),
        total_(std::size_t(count)) {}

  /// Begins the softmax of query i.
  void begin(int i, float sink) { top_[i] = sink, total_[i] = 1.0f; }

  float* q(int i) { return q_.data() + std::int64_t(i) * head_dim_; }
  float* sum(int i) { return sums_.data() + std::int64_t(i) * head_dim_; }

  /// scores [count] -> exp(scores - top); the sum so far is scaled to the new top.
  void weigh(int i, float* scores, int count) {
    const bool first = total_[i] == 0.0f;
    const float here = largest(scores, count);
    const float top = first ? here : std::max(here, top_[i]);
    const float total =
        sum_terms(count, [=](int c) { return scores[c] = vector_exp(scores[c] - top); });
    const float shrink = first ? 0.0f : vector_exp(top_[i] - top);
    total_[i] = first ? total : total_[i] * shrink + total;
    top_[i] = top;
    if (first || shrink == 1.0f) return;
    float* const o = sum(i);
#pragma omp simd
    for (int d = 0; d < head_dim_; ++d) o[d] *= shrink;
  }
  /// The mean that a query's weights make.
  template <class Storage>
  void store(int i, Storage* out) {
    const float share = 1.0f / total_[i];
    const float* const o = sum(i);
#pragma omp simd
    for (int d = 0; d < head_dim_; ++d) out[d] = o[d] * share;
  }

 private:
  int head_dim_;
  std::vector<float> q_, sums_, top_, total_;
};

/// Rows of a block as fp32: in place, or copies.
template <class Storage>
const float* wide(const Storage* rows, std::int64_t elements, std::vector<float>& copy) {
  if constexpr (std::is_same_v<Storage, float>) return rows;
  copy.resize(std::size_t(elements));
  float* const out = copy.data();
#pragma omp simd
  for (std::int64_t i = 0; i < elements; ++i) out[i] = rows[i];
  return out;
}

/// out[i,:] += sum_c weights[i,c] x[c,:] for `count` rows of out, which lie side by side.
void add_weighed_sums(int count, int columns, const Weighed& in, float* out) {
  const auto from = [&](int i) {
    Weighed rest = in;
    rest.weights += i * in.row_step;
    return rest;
  };
  int i = 0;
  for (; i + sum_rows <= count; i += sum_rows)
    add_weighed_rows<sum_rows>(from(i), columns, out + std::int64_t(i) * columns, columns);
  for (; i < count; ++i)
    add_weighed_rows<1>(from(i), columns, out + std::int64_t(i) * columns, columns);
}

/// One run's queries of a group of heads.
template <class Storage>
void attend_run(const AttentionShape& shape, const ConstMatrixOf<Storage>& qkv,
                const KeyCache<Storage>& cache, const TokenRun& run, const HeadGroup& group,
                const ConstVectorOf<Storage>& sinks, const MatrixOf<Storage>& o) {
  const auto [first_head, heads] = group;
  const int head_dim = shape.head_dim, count = run.count * heads, key = shape.key_head(first_head);
  const float scale = shape.score_scale();
  Queries queries(count, head_dim);
  for (int i = 0; i < count; ++i) {
    const Storage* const q = &qkv(run.first + i / heads, (first_head + i % heads) * head_dim);
    if (sinks.data() != nullptr) queries.begin(i, sinks(first_head + i % heads));
    float* const to = queries.q(i);
#pragma omp simd
    for (int d = 0; d < head_dim; ++d) to[d] = q[d];
  }
  const auto first_key = [&](int place) {
    return shape.window > 0 ? std::max(0, place - shape.window + 1) : 0;
  };
  const int step = cache.block_tokens, end = run.place + run.count;
  std::vector<float> scores(std::size_t(count) * step), keys, values;
  for (int first = first_key(run.place) / step * step; first < end; first += step) {
    const int cols = std::min(step, end - first);
    const float* const k =
        wide(cache.at(shape, run.sequence, first, false, key), std::int64_t(cols) * head_dim, keys);
    const float* const v = wide(cache.at(shape, run.sequence, first, true, key),
                                std::int64_t(cols) * head_dim, values);
    float* const made = scores.data();
    if (count <= few_rows)
      dots(count, 0, cols, queries.q(0), head_dim, k, head_dim, head_dim,
           [=](int i, std::int64_t c, float sum) { made[i * step + c] = scale * sum; });
    else
      gemm(count, cols, head_dim, scale, {queries.q(0), head_dim}, {k, head_dim, Transpose::yes},
           0.0f, made, step);
    for (int i = 0; i < count; ++i) {
      const int place = run.place + i / heads;
      const int begin = std::clamp(first_key(place) - first, 0, cols);
      const int seen = std::clamp(place + 1 - first, 0, cols);
      float* const row = scores.data() + std::int64_t(i) * step;
      if (shape.cap != 0.0f)
        for (int c = begin; c < seen; ++c) row[c] = soft_cap(row[c], shape.cap);
      if (begin < seen) queries.weigh(i, row + begin, seen - begin);
      std::fill(row, row + begin, 0.0f);
      std::fill(row + seen, row + cols, 0.0f);
    }
    add_weighed_sums(count, head_dim, {scores.data(), step, 1, v, head_dim, cols}, queries.sum(0));
  }
  for (int i = 0; i < count; ++i)
    queries.store(i, &o(run.first + i / heads, (first_head + i % heads) * head_dim));
}

template <class Storage>
void attend(const AttentionShape& shape, const ConstMatrixOf<Storage>& qkv,
            const KeyCache<Storage>& cache, const ConstVectorOf<Storage>& sinks,
            const std::vector<HeadGroup>& groups, int longest, const MatrixOf<Storage>& o) {
  const std::vector<TokenRun> runs = runs_of(shape, cache, qkv.extent_int(0), longest);
  for_each("cached_attention", std::ssize(runs) * std::ssize(groups), [&](std::int64_t unit) {
    attend_run(shape, qkv, cache, runs[std::size_t(unit) / groups.size()],
               groups[std::size_t(unit) % groups.size()], sinks, o);
  });
}

}  // namespace

template <class Storage>
void cached_attention(const AttentionShape& shape, ConstMatrixOf<Storage> qkv,
                      const KeyCache<Storage>& cache, MatrixOf<Storage> o,
                      ConstVectorOf<Storage> sinks) {
  promise_cached_attention("cached_attention", shape, qkv, cache, o);
  promise_sinks("cached_attention", shape, sinks);
  const int head_dim = shape.head_dim;
  for_each("keep_keys", qkv.extent(0), [=](std::int64_t n) {
    const int sequence = cache.sequences[n];
    if (sequence < 0) {
      std::fill_n(&o(n, 0), o.extent(1), Storage(0.0f));
      return;
    }
    const int place = shape.documents.place(n, shape.seq_len);
    const Storage* from = &qkv(n, shape.heads * head_dim);
    for (const bool value : {false, true})
      for (int head = 0; head < shape.keys(); ++head, from += head_dim)
        std::copy_n(from, head_dim, cache.at(shape, sequence, place, value, head));
  });
  // Heads that share a key head, as far as this rank has them.
  std::vector<HeadGroup> groups;
  for (int head = 0; head < shape.heads; ++head)
    if (groups.empty() || shape.key_head(head) != shape.key_head(head - 1))
      groups.push_back({head, 1});
    else
      ++groups.back().count;
  const int most_heads = std::ranges::max(groups, {}, &HeadGroup::count).count;
  attend(shape, qkv, cache, sinks, groups, std::max(1, most_queries / most_heads), o);
}

}  // namespace brume::kernels

#include "kernels/instances/cached_attention.hpp"
