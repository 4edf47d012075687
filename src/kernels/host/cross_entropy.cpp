#include "kernels/cross_entropy.hpp"

#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/host/loops.hpp"
#include "kernels/soft_cap.hpp"
#include "kernels/vector_math.hpp"

namespace brume::kernels {
namespace {

/// sum_v exp(row[v] - top); `write(v, e)` sees each exponential. fp32 within pieces, double across
/// them.
template <class Storage, class See>
double sum_exponentials(const Storage* row, int vocab, float top, See see) {
  constexpr int piece = 4096;
  double sum = 0.0;
  for (int first = 0; first < vocab; first += piece)
    sum += sum_terms(std::min(piece, vocab - first), [=](int i) {
      const float e = vector_exp(row[first + i] - top);
      see(first + i, e);
      return e;
    });
  return sum;
}

// Exponentials in fp32 wait in the row for their sum, so each is computed once; a narrower format
// would round them twice, and the slope of a cap needs what is capped.
template <class Storage>
constexpr bool waits = std::is_same_v<Storage, float>;

/// sum_v exp(row[v] - top); the row is ready for row_gradient.
template <class Storage>
double begin_row(Storage* row, int vocab, float top, float cap) {
  if (cap > 0.0f) return sum_exponentials(row, vocab, top, [](int, float) {});
  return sum_exponentials(row, vocab, top, [=](int v, float e) {
    if constexpr (waits<Storage>) row[v] = e;
  });
}

template <class Storage>
void cap_row(Storage* row, int vocab, float cap) {
  if (cap == 0.0f) return;
#pragma omp simd
  for (int v = 0; v < vocab; ++v) row[v] = soft_cap(row[v], cap);
}

/// row[v] = factor exp(row[v] - top) - [v = target] scale, after begin_row with the same top.
template <class Storage>
void row_gradient(Storage* row, int vocab, int target, float top, float factor, float scale,
                  float cap) {
  if (cap > 0.0f) {
    for (int v = 0; v < vocab; ++v) {
      const float p = factor * vector_exp(row[v] - top) - (v == target ? scale : 0.0f);
      row[v] = p * soft_cap_slope(row[v], cap);
    }
    return;
  }
  const auto part = [=](int v) {
    return factor * (waits<Storage> ? float(row[v]) : vector_exp(row[v] - top));
  };
  const bool here = target >= 0 && target < vocab;
  const float at_target = here ? part(target) - scale : 0.0f;
#pragma omp simd
  for (int v = 0; v < vocab; ++v) row[v] = part(v);
  if (here) row[target] = at_target;
}

/// What tokens add to the sums.
struct Scores {
  double loss = 0.0, misses = 0.0;

  void operator+=(const Scores& other) { loss += other.loss, misses += other.misses; }
  void store_to(double* loss_sum, double scale, double* miss_count, Write write) const {
    store(scale * loss, write, loss_sum);
    if (miss_count) store(misses, write, miss_count);
  }
};

/// @param margin  of the target's logit over the largest one
Scores scores(double log_sum, double margin) {
  return {log_sum - margin, margin < 0.0 ? 1.0 : 0.0};
}

/// Scores of one token; the row becomes its gradient when asked.
template <class Storage>
Scores score_token(Storage* row, int vocab, int target, float scale, bool with_gradient,
                   float cap) {
  if (target < 0) {
    if (with_gradient) std::fill_n(row, vocab, Storage(0.0f));
    return {};
  }
  cap_row(row, vocab, cap);
  const float top = largest(row, vocab);
  const double margin = target < vocab ? double(row[target]) - double(top) : NAN;
  if (!with_gradient)
    return scores(std::log(sum_exponentials(row, vocab, top, [](int, float) {})), margin);
  const double sum = begin_row(row, vocab, top, cap);
  row_gradient(row, vocab, target, top, float(scale / sum), scale, cap);
  return scores(std::log(sum), margin);
}

/// A token's numbers over all parts.
struct Combined {
  double top, sum, target;
};

Combined combine(const ConstMatrix& statistics, std::int64_t n) {
  const auto of = [&](std::size_t part, int k) {
    return double(statistics(part, num_statistics * n + k));
  };
  Combined all{of(0, 0), 0.0, 0.0};
  for (std::size_t p = 1; p < statistics.extent(0); ++p) all.top = std::max(all.top, of(p, 0));
  for (std::size_t p = 0; p < statistics.extent(0); ++p) {
    all.sum += of(p, 1) * std::exp(of(p, 0) - all.top);
    all.target += of(p, 2);
  }
  return all;
}

}  // namespace

template <class Storage>
void cross_entropy(MatrixOf<Storage> logits, ConstTokens targets, float scale, bool with_gradient,
                   Write write, double* loss, float cap, double* misses) {
  promise(is_column_of(targets, logits), "cross_entropy", "logits [N, V] and targets [N] must fit");
  const int vocab = logits.extent_int(1);
  const auto sums = ordered_sum<Scores>("cross_entropy", logits.extent(0), [=](std::int64_t n) {
    return score_token(&logits(n, 0), vocab, targets(n), scale, with_gradient, cap);
  });
  sums.store_to(loss, scale, misses, write);
}

template <class Storage>
void cross_entropy_part(MatrixOf<Storage> logits, ConstTokens targets, VocabularyPart part,
                        Matrix statistics, float cap) {
  promise_part("cross_entropy_part", logits, targets, statistics);
  const int columns = logits.extent_int(1);
  for_each("cross_entropy_part", logits.extent(0), [=](std::int64_t n) {
    Storage* const row = logits.data() + n * std::int64_t(logits.stride(0));
    float* const out = &statistics(n, 0);
    const int target = targets(n) - part.first;
    const bool here = target >= 0 && target < columns;
    cap_row(row, columns, cap);
    out[0] = columns > 0 ? largest(row, columns) : -std::numeric_limits<float>::infinity();
    out[2] = here ? float(row[target]) : 0.0f;
    out[1] = float(begin_row(row, columns, out[0], cap));
  });
}

template <class Storage>
void cross_entropy_combine(MatrixOf<Storage> logits, ConstTokens targets, VocabularyPart part,
                           ConstMatrix statistics, int index, float scale, Write write,
                           double* loss, float cap, double* misses) {
  promise_combine("cross_entropy_combine", logits, targets, statistics, index);
  const int columns = logits.extent_int(1);
  const auto score = [=](std::int64_t n) -> Scores {
    Storage* const row = logits.data() + n * std::int64_t(logits.stride(0));
    if (targets(n) < 0) {
      std::fill_n(row, columns, Storage(0.0f));
      return {};
    }
    const Combined all = combine(statistics, n);
    const float top = statistics(index, num_statistics * n);
    const double factor = scale * std::exp(double(top) - all.top) / all.sum;
    row_gradient(row, columns, targets(n) - part.first, top, float(factor), scale, cap);
    return scores(std::log(all.sum), targets(n) < part.vocab ? all.target - all.top : NAN);
  };
  ordered_sum<Scores>("cross_entropy_combine", logits.extent(0), score)
      .store_to(loss, scale, misses, write);
}

}  // namespace brume::kernels

#include "kernels/instances/cross_entropy.hpp"
